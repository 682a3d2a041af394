package wire

import (
	"bytes"
	"errors"
	"fmt"
	"io"

	"github.com/pdmesh/pdmesh/internal/http1"
)

// MaxHead is the largest head of a message.
const MaxHead = 16 << 10

// ErrFraming is wrapped by every error about a malformed message.
var ErrFraming = errors.New("malformed HTTP message")

// Head has the parts of a message's head that the benchmark needs.
type Head struct {
	// Line is the first line without its end. It is valid until the next call
	// of the Reader.
	Line []byte
	// Status is the status of a response, 0 for a request.
	Status int
	// Length is the Content-Length, -1 if there is none.
	Length int64
	// Chunked reports whether the body is chunked.
	Chunked bool
	// Close reports whether the sender ends the connection after this message.
	Close bool
	// Continue reports whether a request waits for "100 Continue".
	Continue bool
}

// Reader parses messages. One goroutine at a time may use it.
type Reader struct {
	src  io.Reader
	buf  []byte
	r, w int
}

// NewReader reads from src through a buffer of size bytes; it grows up to
// MaxHead for a long head.
func NewReader(src io.Reader, size int) *Reader {
	return &Reader{src: src, buf: make([]byte, size)}
}

// Reset continues with another connection and drops what is buffered.
func (r *Reader) Reset(src io.Reader) { r.src, r.r, r.w = src, 0, 0 }

// Buffered is the number of bytes that were read and are not returned yet.
func (r *Reader) Buffered() int { return r.w - r.r }

// fill reads once more, after what is buffered.
func (r *Reader) fill() error {
	if r.r == r.w {
		r.r, r.w = 0, 0
	}
	if r.w == len(r.buf) {
		if r.r > 0 {
			r.w = copy(r.buf, r.buf[r.r:r.w])
			r.r = 0
		} else {
			if len(r.buf) >= MaxHead {
				return fmt.Errorf("%w: a head longer than %d bytes", ErrFraming, MaxHead)
			}
			r.buf = append(r.buf, make([]byte, len(r.buf))...)
		}
	}
	n, err := r.src.Read(r.buf[r.w:])
	r.w += n
	if n > 0 {
		return nil
	}
	if err == nil {
		err = io.ErrNoProgress
	}
	return err
}

// EndOfHead is the end of a head's last line, and the empty line after it.
const EndOfHead = "\r\n\r\n"

// Head reads the next message's head. io.EOF means that the connection ended
// before its first byte, io.ErrUnexpectedEOF that it ended within.
func (r *Reader) Head() (Head, error) {
	seen := 0
	for {
		n, err := http1.HeadLen(r.buf[r.r:r.w], seen)
		if err != nil {
			return Head{}, framing(err)
		}
		if n > 0 {
			raw := r.buf[r.r : r.r+n-len("\r\n")]
			r.r += n
			return ParseHead(raw)
		}
		seen = r.Buffered()
		if err := r.fill(); err != nil {
			if errors.Is(err, io.EOF) && r.Buffered() > 0 {
				err = io.ErrUnexpectedEOF
			}
			return Head{}, err
		}
	}
}

// framing wraps an error of http1 in ErrFraming.
func framing(err error) error { return fmt.Errorf("%w: %w", ErrFraming, err) }

// ParseHead reads a head without its empty line: lines that each end in CRLF,
// at least one.
func ParseHead(raw []byte) (Head, error) {
	nl := max(bytes.IndexByte(raw, '\n'), 0)
	line, fields := bytes.TrimSuffix(raw[:nl], []byte("\r")), raw[min(nl+1, len(raw)):]
	h := Head{Line: line, Length: -1}
	old := false
	if bytes.HasPrefix(line, []byte("HTTP/")) {
		var err error
		if h.Status, old, err = http1.ParseStatusLine(line); err != nil {
			return h, framing(err)
		}
	}
	f := http1.Framing{Length: -1}
	for len(fields) > 0 {
		var name, value []byte
		var err error
		if name, value, fields, err = http1.NextField(fields); err != nil {
			return h, framing(err)
		}
		if err := f.Add(name, value, old); err != nil {
			return h, framing(err)
		}
		h.Continue = h.Continue || http1.EqualFold(name, "expect") && http1.EqualFold(value, "100-continue")
	}
	h.Length, h.Chunked, h.Close = f.Length, f.Chunked, f.Close || old && !f.KeepAlive
	return h, nil
}
