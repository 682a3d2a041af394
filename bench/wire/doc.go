// Package wire reads HTTP/1.1 messages off a connection without allocating:
// just what the engine and the load generator of the benchmark need of it,
// because both share a core and the machine's time should go to what is
// measured. It is no general HTTP library: it knows one side it trusts and
// one side it checks, and it refuses what it does not understand.
//
//	Head  ── first line, Content-Length or chunked, Connection, Expect
//	Body  ── hands out the payload piece by piece, framing removed
//	Conn  ── Say, Read: a message goes out, and what answers it is waited for
package wire
