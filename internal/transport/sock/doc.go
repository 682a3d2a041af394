// Package sock reads and writes TCP connections with less CPU than package net. Package
// upstream uses it for engines, and the proxy's listeners for clients.
//
//	Conn ── Read, Write, WriteAll ──▶ one system call each, which bypasses Go's
//	                                  scheduler (Linux)
//
// Otherwise the methods behave as those of net.TCPConn: the runtime's poller waits,
// deadlines apply, and Close unblocks them from any goroutine.
//
// A Go system call normally notifies the scheduler, so that it can run other goroutines
// on another thread while the call blocks. A call on a non-blocking socket does not
// block, and the notification is expensive under intermittent load: the first call
// after an idle period wakes the runtime's monitor thread, which then runs every 20 µs
// for a millisecond (ADR 17).
package sock
