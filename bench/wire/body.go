package wire

import (
	"errors"
	"io"

	"github.com/pdmesh/pdmesh/internal/http1"
)

// Body passes the payload after h to f, piece by piece and in order. A piece is valid during
// the call. A response without a length ends with the connection, and a request without
// a length has no body. If the connection ends too early, the error is
// io.ErrUnexpectedEOF. An error of f ends the reading and is returned.
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

// Full reads exactly len(dst) bytes of payload. It reads what is not buffered directly into dst.
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

// chunks removes the framing inside the buffer, so one piece may have several chunks.
func (r *Reader) chunks(f func([]byte) error) error {
	var d http1.ChunkDecoder
	for !d.Done() {
		if r.Buffered() == 0 {
			if err := r.fill(); err != nil {
				return unexpected(err)
			}
		}
		piece := r.buf[r.r:r.w]
		n, used, err := d.Decode(piece, piece)
		if err != nil {
			return framing(err)
		}
		r.r += used
		if n > 0 {
			if err := f(piece[:n]); err != nil {
				return err
			}
		}
	}
	return nil
}

func unexpected(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}
