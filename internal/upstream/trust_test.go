package upstream

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pdmesh/pdmesh/internal/instance"
)

// talker is an engine that answers with the number of the request on its connection.
// behind tells what it says at once behind that answer, and whether it ends then.
func talker(t *testing.T, behind func(n int) (more string, end bool)) *instance.Instance {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			wg.Go(func() {
				defer func() { _ = c.Close() }()
				r := bufio.NewReader(c)
				for n := 1; ; n++ {
					req, err := http.ReadRequest(r)
					if err != nil {
						return
					}
					_, _ = io.Copy(io.Discard, req.Body)
					more, end := behind(n)
					_, _ = fmt.Fprintf(c, "HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\n%03d%s", n, more)
					if end {
						return
					}
				}
			})
		}
	})
	t.Cleanup(func() { _ = ln.Close(); wg.Wait() })
	return &instance.Instance{Key: instance.Key{Role: instance.Decode, Address: ln.Addr().String()}}
}

func number(t *testing.T, p *Pool, in *instance.Instance) string {
	t.Helper()
	resp, err := p.Do(t.Context(), &Request{Instance: in, Method: http.MethodPost, Path: "/", Now: time.Now()})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// idleOf takes the connection that lies idle out of the pool.
func idleOf(t *testing.T, p *Pool, in *instance.Instance, now time.Time) *conn {
	t.Helper()
	h, dead := p.enter(in, nil)
	closeAll(dead)
	c := p.reuse(h, now, talks)
	if c == nil {
		t.Fatal("no connection lies idle")
	}
	return c
}

// A connection is trusted when enough whole answers came on it, for a moment, and if
// the last read has seen that nothing is behind the last of them.
func TestTrust(t *testing.T) {
	t.Parallel()
	in := talker(t, func(int) (string, bool) { return "", false })
	p := NewPool(Options{})
	defer p.Close()
	for n := 1; n <= trustAfter+3; n++ {
		if got, want := number(t, p, in), fmt.Sprintf("%03d", n); got != want {
			t.Fatalf("answer %s, want %s", got, want)
		}
		c := idleOf(t, p, in, p.begun.Add(p.now()))
		if fresh := p.now()-c.since <= trustFor; c.trusted != (n >= trustAfter) && fresh {
			t.Errorf("trusted after %d answers: %v", n, c.trusted)
		}
		c.good-- // it was counted by nobody
		p.release(c, true)
	}
	c := idleOf(t, p, in, time.Time{})
	c.good--
	p.release(c, true)
	since := p.begun.Add(c.since)
	for _, tc := range []struct {
		name    string
		after   time.Duration
		drained bool
		trusted bool
	}{
		{"at once", 0, true, true},
		{"with a time from before", -time.Second, true, true},
		{"at the last moment", trustFor, true, true},
		{"a moment later", trustFor + 1, true, false},
		{"the last read was full", 0, false, false},
	} {
		h := c.host
		h.mu.Lock()
		c.since, c.drained = since.Sub(p.begun), tc.drained
		h.mu.Unlock()
		if got := idleOf(t, p, in, since.Add(tc.after)); got != c || c.trusted != tc.trusted {
			t.Errorf("%s: trusted %v", tc.name, c.trusted)
		}
		p.release(c, true)
	}
}

// An answer that nobody asked for is nobody's, on a trusted connection too: if it comes
// together with one that was asked for it is seen there, and otherwise by the look,
// which is left out for a moment only.
func TestUnaskedAnswerOnATrustedConnection(t *testing.T) {
	t.Parallel()
	const poison = "HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nbad"
	in := talker(t, func(n int) (string, bool) {
		if n == trustAfter+5 {
			return poison, false
		}
		return "", false
	})
	p := NewPool(Options{})
	defer p.Close()
	for n := range 3 * trustAfter {
		want := fmt.Sprintf("%03d", n%(trustAfter+5)+1) // then the connection is another one
		if got := number(t, p, in); got != want {
			t.Fatalf("request %d: answer %q, want %q", n, got, want)
		}
	}
}

// An engine that ends a trusted connection behind an answer costs no request: what is
// sent to it goes out again on another one.
func TestTrustedConnectionEnds(t *testing.T) {
	t.Parallel()
	in := talker(t, func(n int) (string, bool) { return "", n == trustAfter+2 })
	p := NewPool(Options{})
	defer p.Close()
	for n := range 200 {
		if want := fmt.Sprintf("%03d", n%(trustAfter+2)+1); number(t, p, in) != want {
			t.Fatalf("request %d: not %s", n, want)
		}
	}
}

// One that ends all of its connections behind their first answer is never trusted.
func TestNoTrustInWhoEnds(t *testing.T) {
	t.Parallel()
	in := talker(t, func(int) (string, bool) { return "", true })
	p := NewPool(Options{})
	defer p.Close()
	for range 100 {
		if got := number(t, p, in); got != "001" {
			t.Fatalf("answer %q", got)
		}
		h, dead := p.enter(in, nil)
		closeAll(dead)
		h.mu.Lock()
		for _, c := range h.idle {
			if c.good >= trustAfter {
				t.Errorf("%d answers on a connection", c.good)
			}
		}
		h.mu.Unlock()
		h.leave()
	}
}

// A read that fills its room may have left something behind.
func TestDrained(t *testing.T) {
	t.Parallel()
	if runtime.GOOS != "linux" {
		return
	}
	body := strings.Repeat("x", readSize)
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, body[:r.ContentLength])
	}), ReadHeaderTimeout: time.Minute}
	done := make(chan struct{})
	go func() { defer close(done); _ = s.Serve(ln) }()
	defer func() { _ = s.Close(); <-done }()
	in := &instance.Instance{Key: instance.Key{Role: instance.Decode, Address: ln.Addr().String()}}
	p := NewPool(Options{})
	defer p.Close()
	for size, drained := range map[int]bool{1: true, readSize / 2: true, readSize - 10: false} {
		resp, err := p.Do(t.Context(), &Request{Instance: in, Method: http.MethodPost, Path: "/", Body: [][]byte{[]byte(body[:size])}})
		if err != nil {
			t.Fatal(err)
		}
		if resp.AtHand != drained {
			t.Errorf("%d bytes: at hand %v", size, resp.AtHand)
		}
		if b, err := io.ReadAll(resp.Body); err != nil || len(b) != size {
			t.Fatalf("%d bytes of %d, %v", len(b), size, err)
		}
		c := idleOf(t, p, in, time.Time{})
		if c.drained != drained {
			t.Errorf("%d bytes: drained %v", size, c.drained)
		}
		p.release(c, true)
	}
}
