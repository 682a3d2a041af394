// Package upstream is HTTP to one engine: pooled connections, a guarded dial,
// and errors typed by what is known of the request when it failed, since that
// decides whether it may be sent again.
//
// Two clients stand behind one interface. Std is http.Transport. Pool speaks
// HTTP/1.1 itself: one goroutine per request, the caller's own, writes the
// request in one vectored write and reads the answer; nothing else runs.
//
//	Do ─ idle connection, or dial ─ write head+body ─ read head ─▶ Response
//	          ▲                                                     │ Body
//	          └──────── clean end of the body, and nothing behind it┘
//
// A connection is used again only when the request was sent whole, the answer
// was read to its exact end, and the exchange's context can no longer touch
// it. In every other case it is closed, which is what tells an engine to stop.
package upstream
