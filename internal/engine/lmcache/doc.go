// Package lmcache receives the notifications of LMCache's PD backend: each rank of a prefill sends
// one by ZeroMQ when its chunks are in the buffer of decode.
//
//	prefill rank ──PUSH──▶ Receive ──▶ Inbox ◀──Await── the proxy itself
//	                                     ▲
//	                     Handler (agent) ┴──HTTP──◀ Waiter (proxies)
//
// A prefill sends its notifications to one address, but a fleet has several proxies. So
// the agent of the prefill receives them, and keeps them until a proxy queries those of its
// own request. A lost notification, for example after a restart of the agent, causes a
// failed attempt, never an early decode.
package lmcache
