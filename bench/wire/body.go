package wire

import (
	"bytes"
	"errors"
	"fmt"
	"io"
)

// Body hands the payload behind h to f, piece by piece and in order; a piece is
// valid during the call. A response without a length ends with the connection;
// a request without one has no body. A connection that ends too early is
// io.ErrUnexpectedEOF; an error of f ends the reading and is returned.
func (r *Reader) Body(h Head, f func([]byte) error) error {
	switch {
	case h.Chunked:
		return r.chunks(f)
	case h.Length >= 0:
		return r.exactly(h.Length, f)
	case h.Status == 0, h.Status == 204, h.Status == 304:
		return nil
	}
	for {
		if r.Buffered() == 0 {
			if err := r.fill(); errors.Is(err, io.EOF) {
				return nil
			} else if err != nil {
				return err
			}
		}
		piece := r.buf[r.r:r.w]
		r.r = r.w
		if err := f(piece); err != nil {
			return err
		}
	}
}

// Full reads exactly len(dst) bytes of payload, past the buffer where it can.
func (r *Reader) Full(dst []byte) error {
	n := copy(dst, r.buf[r.r:r.w])
	r.r += n
	_, err := io.ReadFull(r.src, dst[n:])
	return unexpected(err)
}

func (r *Reader) exactly(n int64, f func([]byte) error) error {
	for n > 0 {
		if r.Buffered() == 0 {
			if err := r.fill(); err != nil {
				return unexpected(err)
			}
		}
		piece := r.buf[r.r:min(r.w, r.r+int(min(n, int64(r.Buffered()))))]
		r.r += len(piece)
		n -= int64(len(piece))
		if err := f(piece); err != nil {
			return err
		}
	}
	return nil
}

func (r *Reader) chunks(f func([]byte) error) error {
	for {
		line, err := r.line()
		if err != nil {
			return err
		}
		size, err := chunkSize(line)
		if err != nil {
			return err
		}
		if size == 0 {
			return r.trailer()
		}
		if err := r.exactly(size, f); err != nil {
			return err
		}
		if line, err = r.line(); err != nil {
			return err
		}
		if len(line) > 0 {
			return fmt.Errorf("%w: %q behind a chunk", ErrFraming, line)
		}
	}
}

func (r *Reader) trailer() error {
	for {
		line, err := r.line()
		if err != nil || len(line) == 0 {
			return err
		}
	}
}

// line reads up to the next CRLF, which it drops.
func (r *Reader) line() ([]byte, error) {
	for {
		if i := bytes.IndexByte(r.buf[r.r:r.w], '\n'); i >= 0 {
			line := r.buf[r.r : r.r+i]
			r.r += i + 1
			if len(line) == 0 || line[len(line)-1] != '\r' {
				return nil, fmt.Errorf("%w: a line without CR: %q", ErrFraming, line)
			}
			return line[:len(line)-1], nil
		}
		if err := r.fill(); err != nil {
			return nil, unexpected(err)
		}
	}
}

func chunkSize(line []byte) (int64, error) {
	if i := bytes.IndexByte(line, ';'); i >= 0 {
		line = bytes.TrimSpace(line[:i])
	}
	if len(line) == 0 || len(line) > 15 {
		return 0, fmt.Errorf("%w: chunk size %q", ErrFraming, line)
	}
	var n int64
	for _, c := range line {
		switch {
		case '0' <= c && c <= '9':
			c -= '0'
		case 'a' <= c && c <= 'f':
			c -= 'a' - 10
		case 'A' <= c && c <= 'F':
			c -= 'A' - 10
		default:
			return 0, fmt.Errorf("%w: chunk size %q", ErrFraming, line)
		}
		n = n<<4 | int64(c)
	}
	return n, nil
}

func unexpected(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}
