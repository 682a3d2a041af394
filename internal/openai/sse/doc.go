// Package sse splits a stream of server-sent events and classifies each event by its meaning
// for the request.
package sse
