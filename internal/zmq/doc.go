// Package zmq receives messages from ZeroMQ peers over TCP, and sends to them.
//
// It binds ROUTER and PULL, which engines ping and notify with DEALER and PUSH, and
// connects as those two for the simulator and the tests. The protocol, ZMTP 3.0 with
// the mechanism NULL, is go-zeromq/zmq4's. Connections are ours, because that
// library's own sockets shake hands with one peer at a time and without a limit, and
// make room for whatever length a peer announces: here every peer has its own
// goroutine, a deadline for the handshake, and bounds.
package zmq
