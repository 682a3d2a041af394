// Package zmq receives messages from ZeroMQ peers over TCP, and sends to them.
//
// It binds ROUTER and PULL, which engines ping and notify with DEALER and PUSH, and
// connects as those two for the simulator and the tests. It connects as SUB and DEALER
// to engines that publish what is in their caches, and binds a SUB for those that
// connect to it; PUB and the answers of a ROUTER are there for the simulator. The
// handshake of ZMTP 3.0 with the mechanism NULL is go-zeromq/zmq4's. Connections are
// ours, because that library's own sockets shake hands with one peer at a time and
// without a limit, make room for whatever length a peer announces, and let a heartbeat
// fall between the two halves of a frame: here every peer has its own goroutine, a
// deadline for the handshake, and bounds.
package zmq
