package upstream

import (
	"bufio"
	"bytes"
	"crypto/rand"
	"fmt"
	"hash/crc32"
	"io"
	"net"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/sim/testkit"
)

// Requests in any number of pieces arrive unchanged, whether the socket accepts them at once or in parts.
func TestRequestPieces_InOrder(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name       string
		sendBuffer int // of the sending socket; 0: default
		pieces     []int
	}{
		{"none", 0, nil},
		{"one", 0, []int{5 << 10}},
		{"two", 0, []int{64 << 10, 3}},
		{"with empty ones", 0, []int{0, 6 << 10, 0, 1, 0}},
		{"nothing but empty ones", 0, []int{0, 0}},
		{"more than one call takes", 0, repeated(200, 77)},
		{"more than the kernel takes in one call", 0, repeated(3000, 11)},
		{"the socket is small", 1, []int{700, 9 << 10, 2 << 10}},
		{"the socket is small, one piece", 1, []int{15 << 10}},
		{"the socket is small, many pieces", 1, repeated(1000, 900)},
		{"the socket is small, a large body", 1, []int{1, 3 << 20, 2}},
		{"more than any socket takes", 0, []int{9 << 20, 9 << 20, 9 << 20}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			in := checksumServer(t)
			p := NewPool(Options{}.Patient())
			t.Cleanup(p.Close)
			for try := range 3 { // on a new connection, and on a reused one
				body := make([][]byte, 0, len(tc.pieces))
				for _, n := range tc.pieces {
					b := make([]byte, n)
					_, _ = rand.Read(b)
					body = append(body, b)
				}
				if tc.sendBuffer > 0 {
					shrink(t, p, in, tc.sendBuffer)
				}
				resp, err := p.Do(t.Context(), &Request{Instance: in, Method: http.MethodPost, Path: "/", Body: body})
				require.NoError(t, err, try)
				got, err := io.ReadAll(resp.Body)
				all := bytes.Join(body, nil)
				if want := fmt.Sprintf("%010d %08x", len(all), crc32.ChecksumIEEE(all)); err != nil || string(got) != want {
					t.Fatalf("%d: the server has %q, want %q, %v", try, got, want, err)
				}
			}
		})
	}
}

func repeated(n, size int) []int {
	out := make([]int, n)
	for i := range out {
		out[i] = size
	}
	return out
}

// checksumServer starts a server that answers with the length and the checksum of the body.
func checksumServer(t *testing.T) *instance.Instance {
	t.Helper()
	address := testkit.RawServer(t, func(_ int, c net.Conn) {
		for r := bufio.NewReader(c); ; {
			req, err := http.ReadRequest(r)
			if err != nil {
				return
			}
			sum := crc32.NewIEEE()
			n, err := io.Copy(sum, req.Body)
			if err != nil {
				return
			}
			_, _ = fmt.Fprintf(c, "HTTP/1.1 200 OK\r\nContent-Length: 19\r\n\r\n%010d %08x", n, sum.Sum32())
		}
	})
	return &instance.Instance{Key: instance.Key{Role: instance.Prefill, Address: address}}
}

// shrink ensures that the pool has one idle connection to the
// instance, with a send buffer of about size bytes.
func shrink(t *testing.T, p *Pool, in *instance.Instance, size int) {
	t.Helper()
	h, toClose := p.activeHost(in)
	closeAll(toClose)
	c := p.popIdle(h, time.Now())
	if c == nil {
		var err error
		c, err = p.dial(t.Context(), h, in.Address)
		require.NoError(t, err)
	}
	require.NoError(t, c.tcp.SetWriteBuffer(size))
	p.release(c, true)
}
