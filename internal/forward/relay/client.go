package relay

import (
	"net/http"
	"time"
)

// Client is the connection of one client, as far as one request needs it.
type Client interface {
	http.ResponseWriter
	// Flush sends what was written.
	Flush()
	// SetReadDeadline limits the reading of the request's body; the zero time
	// removes the limit.
	SetReadDeadline(t time.Time) error
	// SetWriteDeadline limits the writing of the answer in the same way.
	SetWriteDeadline(t time.Time) error
}

// Std returns a Client that writes to a response writer of net/http.
func Std(w http.ResponseWriter) Client {
	return &stdClient{ResponseWriter: w, control: http.NewResponseController(w)}
}

type stdClient struct {
	http.ResponseWriter
	control *http.ResponseController
}

// Flush implements Client. A server that cannot flush sends at the end.
func (c *stdClient) Flush() { _ = c.control.Flush() }

// SetReadDeadline implements Client.
func (c *stdClient) SetReadDeadline(t time.Time) error { return c.control.SetReadDeadline(t) }

// SetWriteDeadline implements Client.
func (c *stdClient) SetWriteDeadline(t time.Time) error { return c.control.SetWriteDeadline(t) }
