package httpapi

import (
	"context"
	"errors"
	"io"
	"net/http"
	"os"
	"time"

	"github.com/gin-gonic/gin"
)

// Bounds of linger.
const (
	lingerTotal = 10 * time.Second
	lingerPiece = 64 << 10        // bytes
	lingerPause = 2 * time.Second // for one piece
	lingerMax   = 4096            // pieces
)

// linger sends the response to a refused request, and then discards the rest of the
// request's body for a bounded time. Closing a connection with unread bytes resets it, and
// a client that sends its whole request before it reads would not see the response
// (RFC 9112, 9.6).
func linger(w http.ResponseWriter, r *http.Request) {
	if r.ContentLength == 0 {
		return
	}
	control := http.NewResponseController(w)
	end := time.Now().Add(lingerTotal)
	for piece := 0; piece < lingerMax && time.Now().Before(end); piece++ {
		_ = control.SetReadDeadline(time.Now().Add(lingerPause)) // not supported: no deadline
		if piece == 0 {
			_ = control.Flush() // net/http reads a part of the body before
		}
		if _, err := io.CopyN(io.Discard, r.Body, lingerPiece); err != nil {
			return
		}
	}
}

// lingerAfterRefusal is the middleware that calls linger.
func lingerAfterRefusal(c *gin.Context) {
	c.Next()
	if c.Writer.Status() >= http.StatusBadRequest {
		linger(c.Writer, c.Request)
	}
}

// discardUnusedBody is the middleware that calls discardBody for the methods whose requests need no body.
func discardUnusedBody(c *gin.Context) {
	if c.Request.Method != http.MethodPost && c.Request.Method != http.MethodPut {
		discardBody(c)
	}
}

// discardBody reads the body of a request that needs none. Package net/http would wait for it without a
// limit before it sends the response.
func discardBody(c *gin.Context) {
	r := c.Request
	if r.ContentLength == 0 {
		return
	}
	control := http.NewResponseController(c.Writer)
	_ = control.SetReadDeadline(time.Now().Add(lingerTotal)) // not supported: no deadline
	switch _, err := io.CopyN(io.Discard, r.Body, lingerPiece); {
	case errors.Is(err, io.EOF):
		_ = control.SetReadDeadline(time.Time{})
	case errors.Is(err, os.ErrDeadlineExceeded):
		// net/http has ended the context, although the client waits.
		c.Request = r.WithContext(context.WithoutCancel(r.Context()))
	}
}
