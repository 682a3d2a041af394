// Package zmq receives messages from ZeroMQ peers over TCP, and sends to them.
//
// It binds ROUTER and PULL, which engines ping and notify with DEALER and PUSH. It
// connects as SUB and DEALER to engines that publish their cache events. It speaks ZMTP 3.0 with the
// mechanism NULL. The sockets of go-zeromq/zmq4 handshake with one peer at a time and without a
// deadline, allocate whatever length a peer announces, and let a heartbeat interrupt a frame: here
// every peer has its own goroutine, a deadline for the handshake, and bounds.
package zmq
