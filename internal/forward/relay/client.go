package relay

import (
	"net/http"
	"time"
)

// Client is the connection of one client, with the operations that a request needs.
type Client interface {
	http.ResponseWriter
	// Flush sends the written bytes.
	Flush()
	// SetReadDeadline limits the reading of the request's body; the zero time
	// removes the limit.
	SetReadDeadline(t time.Time) error
	// SetWriteDeadline limits the writing of the answer in the same way.
	SetWriteDeadline(t time.Time) error
}

// Std returns a Client that writes to a response writer of net/http.
func Std(w http.ResponseWriter) Client {
	return stdClient{w, http.NewResponseController(w)}
}

type stdClient struct {
	http.ResponseWriter
	*http.ResponseController
}

// Flush implements Client. A server that cannot flush sends at the end.
func (c stdClient) Flush() { _ = c.ResponseController.Flush() }
