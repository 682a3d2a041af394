// Package sock reads and writes TCP connections with less CPU than package net. Package
// upstream uses it for engines, and the proxy's listeners for clients.
//
//	Conn ── Read, Write, WriteAll ──▶ one system call each, of which Go's scheduler
//	                                  is not told (Linux)
//
// In every other respect the calls are those of net.TCPConn: the runtime's poller
// waits, deadlines hold, and Close ends them from any goroutine.
//
// Go's scheduler is told of a system call so that it can run other goroutines
// elsewhere while the call blocks. A call on a non-blocking socket does not block,
// and to tell the scheduler costs something: on a machine with pauses, the first call
// after a pause wakes the runtime's monitor thread, which then runs every 20 µs for a
// millisecond (ADR 17).
package sock
