package testkit_test

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pdmesh/pdmesh/sim/testkit"
)

// RawAnswers sends each answer unchanged, request by request, until the function returns
// false.
func TestRawAnswers(t *testing.T) {
	t.Parallel()
	address := testkit.RawServer(t, testkit.RawAnswers(func(c net.Conn, r *http.Request, n int) bool {
		_, err := fmt.Fprintf(c, "%d %s\n", n, r.URL.Path)
		return err == nil && n < 3
	}))
	for range 2 { // requests are numbered per connection
		c, err := net.Dial("tcp", address)
		require.NoError(t, err)
		defer func() { _ = c.Close() }()
		in := bufio.NewReader(c)
		for n, path := range []string{"/a", "/b", "/c"} {
			if _, err := fmt.Fprintf(c, "POST %s HTTP/1.1\r\nHost: h\r\nContent-Length: 4\r\n\r\nbody", path); err != nil {
				t.Fatal(err)
			}
			if got, err := in.ReadString('\n'); err != nil || got != fmt.Sprintf("%d %s\n", n+1, path) {
				t.Fatalf("%q, %v", got, err)
			}
		}
		if _, err := in.ReadByte(); !errors.Is(err, io.EOF) {
			t.Errorf("the connection goes on: %v", err)
		}
	}
}

// RawServer closes its connections when the test ends, even if their clients are connected.
func TestRawServer_ClosedAtTestEnd(t *testing.T) {
	t.Parallel()
	var c net.Conn
	ended := make(chan error, 1)
	t.Run("a test", func(t *testing.T) {
		address := testkit.RawServer(t, func(_ int, c net.Conn) {
			_, err := io.WriteString(c, "hello")
			if err == nil {
				_, err = c.Read(make([]byte, 1))
			}
			ended <- err
		})
		var err error
		c, err = net.Dial("tcp", address)
		require.NoError(t, err)
		if _, err := io.ReadFull(c, make([]byte, len("hello"))); err != nil {
			t.Fatal(err)
		}
	})
	defer func() { _ = c.Close() }()
	select {
	case err := <-ended:
		assert.True(t, errors.Is(err, net.ErrClosed), "the server's side ended with %v", err)
	default:
		t.Error("the server's side goes on")
	}
	if rest, err := io.ReadAll(c); err != nil || strings.TrimSpace(string(rest)) != "" {
		t.Errorf("%q, %v", rest, err)
	}
}
