// Package lmcache knows what LMCache's PD backend says beside HTTP: a notification by
// ZeroMQ from each rank of a prefill when its chunks lie in the buffer of decode.
//
//	prefill rank ──PUSH──▶ Receive ──▶ Inbox ◀──Await── the proxy itself
//	                                     ▲
//	                     Handler (agent) ┴──HTTP──◀ Asker (proxies)
//
// A prefill has one address for its notifications, and a fleet several proxies. So the
// agent beside the prefill takes them, and keeps them until a proxy asks for those of
// its own request. A notification that is lost, with an agent that restarts for
// instance, is a failed attempt and never an early decode: nobody guesses.
package lmcache
