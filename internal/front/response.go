package front

import (
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pdmesh/pdmesh/internal/http1"
)

const (
	// writeSize is the size of the buffer for bytes to be sent.
	writeSize = 4 << 10
	// maxJoined is the size up to which a Write is copied into the buffer.
	maxJoined = 2 << 10
)

var writeBuffers = sync.Pool{New: func() any { //nolint:gochecknoglobals // a pool is shared by nature
	b := make([]byte, 0, writeSize)
	return &b
}}

// response implements http.ResponseWriter, http.Flusher and the deadlines of
// http.ResponseController. Unlike net/http it guesses nothing: an answer without a
// Content-Length is chunked, and one without a Content-Type is sent without.
type response struct {
	c           *conn
	header      http.Header
	status      int   // 0: not begun
	length      int64 // announced, -1: chunked
	sent        int64 // of the body
	close       bool  // the connection ends with this answer
	deadlineSet bool  // a write deadline was asked for this answer
	out         *[]byte
	err         error // of the connection; nothing is sent any more

	vector [][]byte // what one system call sends; its array is pieces
	pieces [3][]byte
}

var (
	_ http.ResponseWriter = (*response)(nil)
	_ http.Flusher        = (*response)(nil)
)

// begin makes the response ready for the next answer.
func (w *response) begin() {
	w.clearHeader()
	w.status, w.length, w.sent, w.err, w.close, w.deadlineSet = 0, -1, 0, nil, w.c.request.Close, false
}

// clearHeader empties the header. The check for an empty one costs less than clear.
func (w *response) clearHeader() {
	if len(w.header) > 0 {
		clear(w.header)
	}
}

// Header implements http.ResponseWriter.
func (w *response) Header() http.Header { return w.header }

// WriteHeader implements http.ResponseWriter. Only the first call counts.
func (w *response) WriteHeader(status int) {
	if w.status == 0 {
		w.beginHead(status)
		w.addFields()
		w.endHead()
	}
}

// beginHead writes the status line and the date.
func (w *response) beginHead(status int) {
	w.status = status
	b := append(w.buffer(), "HTTP/1.1 "...)
	b = strconv.AppendInt(b, int64(status), 10)
	b = append(b, ' ')
	b = append(b, http.StatusText(status)...)
	b = append(b, "\r\nDate: "...)
	b = append(b, w.c.server.clock.date()...)
	*w.out = append(b, "\r\n"...)
}

// addFields writes the lines of the header.
func (w *response) addFields() {
	b := *w.out
	for name, values := range w.header {
		switch name {
		case "Content-Length":
			if n, ok := http1.ParseLength(values[0]); ok && len(values) == 1 {
				w.length = n
			}
			continue
		case "Connection":
			w.close = w.close || len(values) > 0 && strings.EqualFold(values[0], "close")
			continue
		case "Transfer-Encoding", "Trailer", "Date":
			continue
		}
		for _, v := range values {
			if more, err := http1.AppendField(b, name, v); err == nil { // a field with a line end in it is left out
				b = more
			}
		}
	}
	*w.out = b
}

// endHead writes the fields about the connection and the framing, and the empty line.
func (w *response) endHead() {
	b := *w.out
	if w.close = w.close || w.c.server.stopping.Load(); w.close {
		b = append(b, "Connection: close\r\n"...)
	}
	switch {
	case w.bodyless():
		w.length = 0
	case w.length >= 0:
		b = http1.AppendLength(b, w.length)
	default:
		b = append(b, "Transfer-Encoding: chunked\r\n"...)
	}
	*w.out = append(b, "\r\n"...)
}

// bodyless tells whether an answer of this status has no body (RFC 9112, 6.3).
func (w *response) bodyless() bool {
	return w.status < 200 || w.status == http.StatusNoContent || w.status == http.StatusNotModified
}

// Write implements http.ResponseWriter. Small pieces wait in the buffer for Flush, or
// until it is full.
func (w *response) Write(p []byte) (int, error) {
	if w.status == 0 {
		w.WriteHeader(http.StatusOK)
	}
	switch {
	case w.err != nil:
		return 0, w.err
	case w.bodyless() && len(p) > 0:
		return 0, http.ErrBodyNotAllowed
	case w.length >= 0 && w.sent+int64(len(p)) > w.length:
		return 0, http.ErrContentLength
	case len(p) == 0:
		return 0, nil
	}
	w.sent += int64(len(p))
	b := w.buffer()
	if w.length < 0 {
		b = http1.AppendChunkSize(b, len(p))
	}
	if len(p) > maxJoined {
		*w.out = b
		w.sendWith(p)
	} else if b = append(b, p...); w.length < 0 {
		*w.out = append(b, "\r\n"...)
	} else {
		*w.out = b
	}
	if w.out != nil && len(*w.out) > writeSize {
		w.send()
	}
	if w.err != nil {
		return 0, w.err
	}
	return len(p), nil
}

// Flush implements http.Flusher.
func (w *response) Flush() {
	if w.status == 0 {
		w.WriteHeader(http.StatusOK)
	}
	w.send()
}

// buffer gives the bytes that wait to be sent, to append to.
func (w *response) buffer() []byte {
	if w.out == nil {
		w.out, _ = writeBuffers.Get().(*[]byte)
	}
	return *w.out
}

// send sends the buffer and returns it to the pool: an open stream holds none.
func (w *response) send() {
	if w.out != nil && w.err == nil && len(*w.out) > 0 {
		w.clearWriteDeadline()
		if _, err := w.c.tcp.Write(*w.out); err != nil {
			w.err = err
		}
	}
	w.dropBuffer()
}

// sendWith sends the buffer and p in one system call. In a chunked answer p is a
// chunk, whose size is at the end of the buffer.
func (w *response) sendWith(p []byte) {
	w.pieces[0], w.pieces[1] = *w.out, p
	w.vector = w.pieces[:2]
	if w.length < 0 {
		w.vector = append(w.vector, crlf)
	}
	w.clearWriteDeadline()
	if _, err := w.c.tcp.WriteAll(w.vector); err != nil {
		w.err = err
	}
	clear(w.pieces[:])
	w.vector = nil
	w.dropBuffer()
}

var crlf = []byte("\r\n") //nolint:gochecknoglobals // never changed

// clearWriteDeadline clears the deadline that an earlier answer left on the
// connection, unless this answer has set one of its own, which may be the same.
func (w *response) clearWriteDeadline() {
	if !w.deadlineSet && !w.c.writeDeadline.IsZero() {
		w.c.writeDeadline = time.Time{}
		_ = w.c.tcp.SetWriteDeadline(time.Time{})
	}
}

// dropBuffer returns the buffer to the pool without sending it.
func (w *response) dropBuffer() {
	if w.out == nil {
		return
	}
	if cap(*w.out) <= 4*writeSize {
		*w.out = (*w.out)[:0]
		writeBuffers.Put(w.out)
	}
	w.out = nil
}

// end completes the answer and tells whether another can follow it.
func (w *response) end() (keepAlive bool) {
	if w.status == 0 {
		w.header["Content-Length"] = []string{"0"}
		w.WriteHeader(http.StatusOK)
	}
	if w.length < 0 {
		*w.out = append(w.buffer(), http1.LastChunk...)
	}
	w.send()
	w.clearHeader() // an idle connection must not hold the values of its last answer
	return w.err == nil && !w.close && (w.length < 0 || w.sent == w.length)
}

// SetReadDeadline limits the reading of the request's body.
func (w *response) SetReadDeadline(t time.Time) error {
	w.c.body.deadline = t
	return nil
}

// SetWriteDeadline limits the writing of the answer. The deadline may be up to a
// quarter of its time earlier: one that is set already stays if it is near enough.
func (w *response) SetWriteDeadline(t time.Time) error {
	w.deadlineSet = true
	if set := w.c.writeDeadline; !t.IsZero() && !set.IsZero() {
		if early := t.Sub(set); early >= 0 && early < time.Until(t)/4 {
			return nil
		}
	}
	w.c.writeDeadline = t
	return w.c.tcp.SetWriteDeadline(t)
}

// clock gives the Date of answers. It formats one a second.
type clock struct{ last atomic.Pointer[date] }

type date struct {
	made     time.Time
	validFor time.Duration // until the second's end
	text     string
}

// date reads the monotonic clock only, which costs half. If the wall clock is set,
// the date is wrong for the rest of a second.
func (c *clock) date() string {
	d := c.last.Load()
	if d == nil || time.Since(d.made) >= d.validFor {
		now := time.Now()
		d = &date{now, time.Second - time.Duration(now.Nanosecond()), now.UTC().Format(http.TimeFormat)}
		c.last.Store(d)
	}
	return d.text
}
