// Package upstream is the HTTP client to the engines. It pools connections, dials
// allowed addresses only, and types each error by how far the request had come,
// since that decides whether the request may be sent again.
//
// Two clients are behind one interface. Std is http.Transport. Pool speaks
// HTTP/1.1 itself: the caller's goroutine writes the request in one vectored
// write and reads the answer, and no other goroutine runs.
//
//	Do ─ idle connection, or dial ─ write head+body ─ read head ─▶ Response
//	          ▲                                                      │ Body
//	          └──────── clean end of the body, and no byte after it ─┘
//
// A connection is used again only when all of the request was sent, the answer
// was read to its exact end, and the exchange's context can no longer close
// it. In every other case it is closed, which tells an engine to stop working.
package upstream
