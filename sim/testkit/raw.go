package testkit

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"testing"

	"github.com/pdmesh/pdmesh/sim/tcpserver"
	"github.com/pdmesh/pdmesh/sim/testkit/require"
)

// RawServer listens on a port of this machine, passes each connection to talk, with its
// number from 0, and its own address to the caller. It writes nothing by itself, so that a test can answer with
// any bytes, cut where it likes. A connection is closed when its talk returns; the end
// of the test closes all of them and waits for talk, which must then return.
func RawServer(t testing.TB, talk func(n int, c net.Conn)) (address string) {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	server := tcpserver.Serve(ln, talk)
	t.Cleanup(server.Close)
	return ln.Addr().String()
}

// RawAnswers is a talk for RawServer that reads one request after the other, with its
// body, and has answer write to the connection. n counts the connection's requests from
// 1. The connection ends when the client ends it, or answer returns false.
func RawAnswers(answer func(c net.Conn, r *http.Request, n int) bool) (talk func(n int, c net.Conn)) {
	return func(_ int, c net.Conn) {
		in := bufio.NewReader(c)
		for n := 1; ; n++ {
			r, err := http.ReadRequest(in)
			if err != nil {
				return
			}
			if _, err := io.Copy(io.Discard, r.Body); err != nil || !answer(c, r, n) {
				return
			}
		}
	}
}
