// Package upstream is the HTTP client to the engines. It pools connections, dials
// allowed addresses only, and classifies each error by the stage that the request
// had reached, which decides whether the request may be retried.
//
// Client has two implementations. Std uses http.Transport. Pool speaks HTTP/1.1
// itself: the caller's goroutine writes the request in one vectored write and
// reads the response, without any other goroutine.
//
//	Do ─ idle connection, or dial ─ write head+body ─ read head ─▶ Response
//	          ▲                                                      │ Body
//	          └──────── clean end of the body, and no byte after it ─┘
//
// A connection is reused only if the whole request was sent, the response was
// read to its exact end, and the exchange's context can no longer close the
// connection. Otherwise it is closed, which makes the engine abort the request.
package upstream
