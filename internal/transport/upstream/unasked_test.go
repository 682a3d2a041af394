package upstream

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/sim/testkit"
)

// numberingServer starts an engine that responds with the number of the request on its connection. behind
// returns the bytes directly after response n, and whether the engine then closes the connection.
func numberingServer(t *testing.T, behind func(n int) (more string, end bool)) *instance.Instance {
	t.Helper()
	address := testkit.RawServer(t, testkit.RawAnswers(func(c net.Conn, _ *http.Request, n int) bool {
		more, end := behind(n)
		_, _ = fmt.Fprintf(c, "HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\n%03d%s", n, more)
		return !end
	}))
	return &instance.Instance{Key: instance.Key{Role: instance.Decode, Address: address}}
}

func requestNumber(t *testing.T, p *Pool, in *instance.Instance) string {
	t.Helper()
	resp, err := p.Do(t.Context(), &Request{Instance: in, Method: http.MethodPost, Path: "/"})
	require.NoError(t, err)
	defer func() { _ = resp.Body.Close() }()
	b, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	return string(b)
}

// goodAnswers is the number of good answers on a connection before the bad one. It is
// large, so that a client that trusts a connection after many good answers would fail.
const goodAnswers = 32

// An unsolicited response directly after another one is not returned to the next
// request, regardless of the number of good responses before it.
func TestUnsolicitedAnswer_AfterAnother(t *testing.T) {
	t.Parallel()
	const poison = "HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nbad"
	in := numberingServer(t, func(n int) (string, bool) {
		if n == goodAnswers {
			return poison, false
		}
		return "", false
	})
	p := NewPool(Options{}.Patient())
	defer p.Close()
	for n := range 3 * goodAnswers {
		want := fmt.Sprintf("%03d", n%goodAnswers+1) // each connection serves goodAnswers requests
		require.Equal(t, want, requestNumber(t, p, in), "request %d: answer", n)
	}
}

// A later unsolicited response is not returned to the next request, which may be
// another client's.
func TestUnsolicitedAnswer_BeforeNextRequest(t *testing.T) {
	t.Parallel()
	const poison = "HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nbad"
	ln := testkit.Listen(t)
	conns := make(chan net.Conn, 8) // in the order they were accepted
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			conns <- c
			wg.Go(func() {
				defer func() { _ = c.Close() }()
				r := bufio.NewReader(c)
				for n := 1; ; n++ {
					req, err := http.ReadRequest(r)
					if err != nil {
						return
					}
					_, _ = io.Copy(io.Discard, req.Body)
					_, _ = fmt.Fprintf(c, "HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\n%03d", n)
				}
			})
		}
	})
	t.Cleanup(func() { _ = ln.Close(); wg.Wait() })
	in := &instance.Instance{Key: instance.Key{Role: instance.Decode, Address: ln.Addr().String()}}
	p := NewPool(Options{}.Patient())
	defer p.Close()
	for range 5 {
		for n := 1; n <= goodAnswers; n++ {
			require.Equal(t, fmt.Sprintf("%03d", n), requestNumber(t, p, in), "answer")
		}
		_, err := io.WriteString(<-conns, poison)
		require.NoError(t, err)
	}
}

// An engine that closes a connection after a response does not fail the next request,
// which is sent on another connection.
func TestSteadyConnectionEnds(t *testing.T) {
	t.Parallel()
	in := numberingServer(t, func(n int) (string, bool) { return "", n == goodAnswers })
	p := NewPool(Options{}.Patient())
	defer p.Close()
	for n := range 200 {
		require.Equal(t, fmt.Sprintf("%03d", n%goodAnswers+1), requestNumber(t, p, in), "request %d", n)
	}
}
