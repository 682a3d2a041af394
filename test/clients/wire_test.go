package clients_test

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"fmt"
	"io"
	"net"
	"net/textproto"
	"strconv"
	"strings"
	"time"
)

// wire is one TCP connection of a tool.
type wire struct {
	conn net.Conn
	in   *bufio.Reader
}

// reply is a response as received, with the pieces of a chunked body kept separate.
type reply struct {
	status int
	header textproto.MIMEHeader
	chunks [][]byte
	whole  bool // the body was complete and the connection can be reused
}

func (r *reply) body() []byte { return bytes.Join(r.chunks, nil) }

// text returns the body without its content encoding.
func (r *reply) text() ([]byte, error) {
	if r.header.Get("Content-Encoding") != "gzip" {
		return r.body(), nil
	}
	z, err := gzip.NewReader(bytes.NewReader(r.body()))
	if err != nil {
		return nil, err
	}
	return io.ReadAll(z)
}

func dial(ctx context.Context, address string) (*wire, error) {
	d := net.Dialer{Timeout: soon}
	conn, err := d.DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, err
	}
	if err := conn.SetDeadline(time.Now().Add(soon)); err != nil {
		return nil, err
	}
	return &wire{conn: conn, in: bufio.NewReader(conn)}, nil
}

func (w *wire) Close() error { return w.conn.Close() }

// send sends each part in a separate write.
func (w *wire) send(parts ...[]byte) error {
	for _, p := range parts {
		if _, err := w.conn.Write(p); err != nil {
			return err
		}
	}
	return nil
}

// receive reads one response. If enough returns true, it stops reading a chunked body early.
func (w *wire) receive(head bool, enough func(chunk []byte) bool) (*reply, error) {
	r := &reply{}
	text := textproto.NewReader(w.in)
	line, err := text.ReadLine()
	if err != nil {
		return nil, fmt.Errorf("status line: %w", err)
	}
	proto, rest, _ := strings.Cut(line, " ")
	code, _, _ := strings.Cut(rest, " ")
	if r.status, err = strconv.Atoi(code); err != nil || proto != "HTTP/1.1" {
		return nil, fmt.Errorf("status line %q", line)
	}
	if r.header, err = text.ReadMIMEHeader(); err != nil {
		return nil, fmt.Errorf("header: %w", err)
	}
	switch length := r.header.Get("Content-Length"); {
	case head:
	case length != "":
		n, err := strconv.Atoi(length)
		if err != nil {
			return nil, fmt.Errorf("length %q", length)
		}
		body := make([]byte, n)
		if _, err := io.ReadFull(w.in, body); err != nil {
			return nil, fmt.Errorf("body: %w", err)
		}
		r.chunks = [][]byte{body}
	case strings.EqualFold(r.header.Get("Transfer-Encoding"), "chunked"):
		for {
			chunk, err := w.chunk(text)
			if err != nil {
				return nil, fmt.Errorf("chunk %d: %w", len(r.chunks), err)
			}
			if len(chunk) == 0 {
				break
			}
			r.chunks = append(r.chunks, chunk)
			if enough != nil && enough(chunk) {
				return r, nil
			}
		}
	default:
		return nil, fmt.Errorf("neither a length nor chunks: %v", r.header)
	}
	r.whole = true
	return r, nil
}

// chunk reads one piece of a chunked body; the last one is empty.
func (w *wire) chunk(text *textproto.Reader) ([]byte, error) {
	line, err := text.ReadLine()
	if err != nil {
		return nil, err
	}
	n, err := strconv.ParseUint(line, 16, 31)
	if err != nil {
		return nil, fmt.Errorf("size %q", line)
	}
	piece := make([]byte, n)
	if _, err := io.ReadFull(w.in, piece); err != nil {
		return nil, err
	}
	end, err := text.ReadLine() // after the last chunk it ends the (empty) trailer
	if err == nil && end != "" {
		err = fmt.Errorf("%q after a chunk", end)
	}
	return piece, err
}
