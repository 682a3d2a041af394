// Package front is the HTTP/1.1 server in front of the routes that have to be
// fast. It reads one kind of request itself: POST to one of these routes, with a
// Content-Length and a head that is all there and beyond doubt. At the first
// request of any other kind it hands the connection, with the bytes read, to a
// server of the standard library, which keeps it from then on and also answers
// whatever is wrong with the request. What that server takes though the end of the
// request is in doubt is refused on its way there (package framing).
//
// What net/http has and this has not is what makes it cheap: no goroutine beside
// each request that watches the client (one epoll watches all of them), no
// buffers held by open streams, nothing made anew for each request but the
// strings of its head.
package front
