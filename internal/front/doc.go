// Package front is the HTTP/1.1 server of the routes that have to be fast. It reads
// one kind of request itself: a POST to one of these routes with a Content-Length,
// whose head arrives whole and can be read in one way only. At the first request of
// any other kind it hands the connection, with the bytes it has read, to a server of
// the standard library. That server keeps the connection from then on, and answers
// what is wrong with the request. Package framing, on the way there, refuses requests
// whose end is in doubt; net/http would take some of them.
//
// It costs less than net/http because it does less. No goroutine beside each request
// watches the client: one epoll watches all of them. Open streams hold no buffers.
// A request allocates only the strings of its head.
package front
