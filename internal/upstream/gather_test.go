package upstream_test

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/pdmesh/pdmesh/internal/upstream"
)

// TestGather asks a body to wait for more, at every place where it could be: with
// bytes of it in the buffer, without, behind its end. Nothing is lost, and the
// connection serves the next request, whose answer is shorter than what was waited
// for.
func TestGather(t *testing.T) {
	t.Parallel()
	const events = 50
	event := "data: " + strings.Repeat("x", 200) + "\n\n"
	in := server(t, func(n int, c net.Conn, r *bufio.Reader) {
		if n > 0 {
			t.Errorf("connection %d", n)
		}
		for {
			q, _, err := readRequest(r)
			if err != nil {
				return
			}
			if q.URL.Path != "/stream" {
				_, _ = io.WriteString(c, ok)
				continue
			}
			_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
			for range events {
				_, _ = io.WriteString(c, "d0\r\n"+event+"\r\n")
			}
			_, _ = io.WriteString(c, "0\r\n\r\n")
		}
	})
	p := own(t, upstream.Options{})
	for _, wait := range []time.Duration{0, time.Millisecond, time.Minute} {
		r := request(in)
		r.Path = "/stream"
		resp, err := p.Do(t.Context(), r)
		if err != nil {
			t.Fatal(err)
		}
		body := resp.Body.(upstream.Gatherer)
		var got []byte
		for buf := make([]byte, 4<<10); err == nil; {
			n := 1000
			if wait == time.Minute { // only for what is sure to come
				n = min(n, events*len(event)-len(got))
			}
			body.Gather(n, wait)
			var m int
			m, err = resp.Body.Read(buf)
			got = append(got, buf[:m]...)
		}
		body.Gather(1000, time.Minute) // nothing to wait for
		if !errors.Is(err, io.EOF) || string(got) != strings.Repeat(event, events) {
			t.Fatalf("%d bytes and %v, want %d and the end", len(got), err, events*len(event))
		}
		if text, e := do(t, p, in); e != nil || text != "ok" {
			t.Fatalf("behind it: %q, %v", text, e)
		}
	}
}

// TestGatherIsCutShort by the end of the request's context, and by the engine's.
func TestGatherIsCutShort(t *testing.T) {
	t.Parallel()
	in := server(t, func(_ int, c net.Conn, r *bufio.Reader) {
		q, _, err := readRequest(r)
		if err != nil {
			return
		}
		_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n")
		if q.URL.Path != "/broken" {
			_, _ = r.ReadByte() // until the client leaves
		}
	})
	p := own(t, upstream.Options{})
	for _, path := range []string{"/left", "/broken"} {
		ctx, cancel := context.WithCancelCause(t.Context())
		cause := errors.New("no more")
		r := request(in)
		r.Path = path
		resp, err := p.Do(ctx, r)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(resp.Body, make([]byte, 2)); err != nil {
			t.Fatal(err)
		}
		if path == "/left" {
			time.AfterFunc(time.Millisecond, func() { cancel(cause) })
		}
		resp.Body.(upstream.Gatherer).Gather(1000, time.Minute)
		n, err := resp.Body.Read(make([]byte, 10))
		var e *upstream.Error
		if n != 0 || !errors.As(err, &e) || e.Stage != upstream.StageBody {
			t.Errorf("%s: %d bytes and %v, want a broken body", path, n, err)
		}
		if path == "/left" && !errors.Is(err, cause) {
			t.Errorf("%s: %v, want the cause of the end", path, err)
		}
		cancel(nil)
	}
}
