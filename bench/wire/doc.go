// Package wire reads HTTP/1.1 messages from a connection without allocating. The engine
// and the load generator of the benchmark use it. They share a core, so they must leave
// the machine's time to the target. It is not a general HTTP library: it has only what
// these two need, and refuses all other messages.
//
//	Head  ── first line, Content-Length or chunked, Connection, Expect
//	Body  ── the payload piece by piece, without its framing
//	Conn  ── Queue and Read: send a message and wait for its answer
package wire
