// Package zmq receives messages from ZeroMQ peers over TCP, and sends to them.
//
// It binds ROUTER and PULL sockets for the pings and notifications that engines send with DEALER and PUSH. It
// connects as SUB and DEALER to engines that publish their cache events. It speaks ZMTP 3.0 with the
// mechanism NULL. The sockets of go-zeromq/zmq4 handshake with one peer at a time and without a deadline,
// allocate any length that a peer announces, and let a heartbeat interrupt a frame. Here every peer has a
// separate goroutine, a deadline for the handshake, and bounds.
package zmq
