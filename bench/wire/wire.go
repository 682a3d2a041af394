package wire

import (
	"bytes"
	"errors"
	"fmt"
	"io"
)

// MaxHead bounds a message's head and every line of chunk framing.
const MaxHead = 16 << 10

// ErrFraming is wrapped by every complaint about a malformed message.
var ErrFraming = errors.New("malformed HTTP message")

// Head is what matters of a message's head.
type Head struct {
	// Line is the first line without its end. It is valid until the next call
	// of the Reader.
	Line []byte
	// Status is that of a response, 0 for a request.
	Status int
	// Length is the Content-Length, -1 without one.
	Length int64
	// Chunked tells that the body is in chunks.
	Chunked bool
	// Close tells that the sender ends the connection after this message.
	Close bool
	// Continue tells that a request waits for "100 Continue".
	Continue bool
}

// Reader takes messages apart. It is for one goroutine at a time.
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

// Reset goes on with another connection; what was buffered is dropped.
func (r *Reader) Reset(src io.Reader) { r.src, r.r, r.w = src, 0, 0 }

// Buffered is the number of bytes read but not yet handed out.
func (r *Reader) Buffered() int { return r.w - r.r }

// fill reads once more behind what is buffered.
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
				return fmt.Errorf("%w: a head or line longer than %d bytes", ErrFraming, MaxHead)
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

// EndOfHead ends the last line of a head and is the empty line behind it.
const EndOfHead = "\r\n\r\n"

// Head reads the next message's head. io.EOF means that the connection ended
// before its first byte, io.ErrUnexpectedEOF that it ended within.
func (r *Reader) Head() (Head, error) {
	seen := 0
	for {
		if i := bytes.Index(r.buf[r.r+seen:r.w], []byte(EndOfHead)); i >= 0 {
			raw := r.buf[r.r : r.r+seen+i+2]
			r.r += seen + i + len(EndOfHead)
			return ParseHead(raw)
		}
		seen = max(r.Buffered()-len(EndOfHead)+1, 0)
		if err := r.fill(); err != nil {
			if errors.Is(err, io.EOF) && r.Buffered() > 0 {
				err = io.ErrUnexpectedEOF
			}
			return Head{}, err
		}
	}
}

// ParseHead reads a head without its empty line: lines that each end in CRLF,
// at least one.
func ParseHead(raw []byte) (Head, error) {
	h := Head{Length: -1}
	line, rest := cutLine(raw)
	h.Line = line
	if bytes.HasPrefix(line, []byte("HTTP/")) {
		status, ok := number(line[min(len(line), 9):min(len(line), 12)])
		if !ok || status < 100 {
			return h, fmt.Errorf("%w: status line %q", ErrFraming, line)
		}
		h.Status = int(status)
		h.Close = bytes.HasPrefix(line, []byte("HTTP/1.0"))
	}
	for len(rest) > 0 {
		line, rest = cutLine(rest)
		colon := bytes.IndexByte(line, ':')
		if colon <= 0 {
			return h, fmt.Errorf("%w: header line %q", ErrFraming, line)
		}
		if err := h.header(line[:colon], bytes.TrimSpace(line[colon+1:])); err != nil {
			return h, err
		}
	}
	if h.Chunked && h.Length >= 0 {
		return h, fmt.Errorf("%w: both Content-Length and Transfer-Encoding", ErrFraming)
	}
	return h, nil
}

// header looks at the few names that matter, told apart by their lengths.
func (h *Head) header(name, value []byte) error {
	switch len(name) {
	case len("Content-Length"):
		if !equalFold(name, "content-length") {
			return nil
		}
		n, ok := number(value)
		if !ok || (h.Length >= 0 && h.Length != n) {
			return fmt.Errorf("%w: Content-Length %q", ErrFraming, value)
		}
		h.Length = n
	case len("Transfer-Encoding"):
		if !equalFold(name, "transfer-encoding") {
			return nil
		}
		if !equalFold(value, "chunked") {
			return fmt.Errorf("%w: Transfer-Encoding %q", ErrFraming, value)
		}
		h.Chunked = true
	case len("Connection"):
		if equalFold(name, "connection") {
			h.Close = equalFold(value, "close") || h.Close && !equalFold(value, "keep-alive")
		}
	case len("Expect"):
		h.Continue = h.Continue || equalFold(name, "expect") && equalFold(value, "100-continue")
	}
	return nil
}

func cutLine(b []byte) (line, rest []byte) {
	i := bytes.IndexByte(b, '\n')
	return bytes.TrimSuffix(b[:i], []byte("\r")), b[i+1:]
}

// equalFold compares with a lower-case word.
func equalFold(b []byte, lower string) bool {
	if len(b) != len(lower) {
		return false
	}
	for i, c := range b {
		if 'A' <= c && c <= 'Z' {
			c += 'a' - 'A'
		}
		if c != lower[i] {
			return false
		}
	}
	return true
}

func number(b []byte) (int64, bool) {
	if len(b) == 0 || len(b) > 18 {
		return 0, false
	}
	var n int64
	for _, c := range b {
		if c < '0' || c > '9' {
			return 0, false
		}
		n = n*10 + int64(c-'0')
	}
	return n, true
}
