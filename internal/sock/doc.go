// Package sock reads and writes TCP connections at less cost than package net,
// for the two ends of the path that every request takes.
//
//	Conn ── Read, Write, WriteAll ──▶ one system call each, which Go's scheduler
//	                                   is not told of (Linux)
//
// The calls are those of net.TCPConn in every other respect: the runtime's poller
// waits, deadlines hold, and Close ends them from any goroutine.
//
// Why not tell the scheduler: what it hears of a system call serves to move other
// goroutines away from one that blocks, and a call on a non-blocking socket does
// not. It is not free: on a machine that is idle now and then, the first call after
// a pause wakes the runtime's monitor thread, which then looks around every 20 µs
// for a millisecond.
package sock
