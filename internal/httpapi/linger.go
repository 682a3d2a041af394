package httpapi

import (
	"io"
	"net/http"
	"time"

	"github.com/gin-gonic/gin"
)

// Bounds of linger.
const (
	lingerTotal = 10 * time.Second
	lingerPiece = 64 << 10        // bytes
	lingerPause = 2 * time.Second // for one piece
	lingerMax   = 4096            // pieces
	lingerClose = 200 * time.Millisecond
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

// discardBody reads the body of a request that needs none. If the body does not arrive, the request is
// served while the read continues, because net/http detects a disconnected client only by a read.
func discardBody(c *gin.Context) {
	r := c.Request
	if r.ContentLength == 0 {
		return
	}
	c.Request = r.WithContext(r.Context()) // a copy: a late trailer changes r
	read := make(chan struct{})
	go func() {
		defer close(read)
		_, _ = io.Copy(io.Discard, r.Body)
	}()
	wait := lingerTotal
	if c.Writer.Header().Get("Connection") == "close" {
		wait = lingerClose // a connection beyond the limit must not be held
	}
	select {
	case <-read:
		return
	case <-r.Context().Done():
	case <-time.After(wait):
	}
	defer func() {
		_ = http.NewResponseController(c.Writer).SetReadDeadline(time.Now()) // ends the read
		<-read
	}()
	c.Header("Connection", "close") // otherwise net/http would wait for the body before it sends the response
	c.Next()
}
