// Package floor is a yardstick: what two hops cost in system calls on this
// machine, and nothing else. For each request it does what no proxy between a
// prefill and a decode engine gets around:
//
//	client ── read ─▶ ┌───────┐ ── one write ─▶ prefill     the head, the ask, the body
//	                  │ floor │ ◀─ read ──────              the hand-over
//	                  │       │ ── one write ─▶ decode      the head, the hand-over, the body
//	client ◀─ write ─ └───────┘ ◀─ read ──────              as it comes, each read one write
//
// One thread waits in an epoll of its own, edge-triggered, and calls the kernel
// directly; nothing is allocated for a request, no other goroutine runs and the
// collector is off. The legs' heads are written in front of the body where it
// lies, over the client's head, so a body is copied by the kernel alone.
// Connections are kept, the last used first; instances are taken in turn.
//
// It is no proxy and must not become one. It knows the benchmark's requests and
// the fast engine's answers, by their last bytes where that will do; it has no
// failure handling, no timeouts, no log. A client that leaves takes its leg
// along; any other surprise (an engine that closes a connection, a status other
// than 200, a request in chunks) ends the process with a message.
//
// What it is not the least for: a stream that comes as fast as it can is read in
// as many pieces as it finds, and a slower target finds fewer and larger ones.
package floor
