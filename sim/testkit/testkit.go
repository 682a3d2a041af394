package testkit

import (
	"bytes"
	"context"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pdmesh/pdmesh/sim/fleet"
	"github.com/pdmesh/pdmesh/sim/testkit/require"
)

// pollEvery is the pause between two looks of Eventually.
const pollEvery = 5 * time.Millisecond

// Eventually polls cond until it returns nil. If it does not within timeout
// the test fails at once, with cond's last error. The timeout is for a broken
// program, so choose it generously; do not assert on the elapsed time.
func Eventually(t testing.TB, timeout time.Duration, cond func() error) {
	t.Helper()
	deadline := time.NewTimer(timeout)
	defer deadline.Stop()
	tick := time.NewTicker(pollEvery)
	defer tick.Stop()
	for {
		err := cond()
		if err == nil {
			return
		}
		select {
		case <-deadline.C:
			t.Fatalf("did not happen within %s: %v", timeout, err)
		case <-t.Context().Done():
			t.Fatalf("the test ended first: %v", err)
		case <-tick.C:
		}
	}
}

// Ask sends a request with a JSON body, or none for "", and returns the answer, whose body
// the caller closes.
func Ask(ctx context.Context, client *http.Client, method, url, body string) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, method, url, strings.NewReader(body))
	if err != nil {
		return nil, err
	}
	if body != "" {
		req.Header.Set("Content-Type", "application/json")
	}
	return client.Do(req)
}

// Buffer collects output that may be read while it is written.
// The zero Buffer is empty.
type Buffer struct {
	mu sync.Mutex // guards b
	b  bytes.Buffer
}

func (b *Buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

// String is what has come so far.
func (b *Buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

// WriteFile writes a file that only its owner can read.
func WriteFile(t testing.TB, path, text string) {
	t.Helper()
	require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
}

// ReadFile returns the content of a file.
func ReadFile(t testing.TB, path string) []byte {
	t.Helper()
	b, err := os.ReadFile(path)
	require.NoError(t, err)
	return b
}

// Listen listens at a free port of the loopback interface until the test ends.
func Listen(t testing.TB) net.Listener {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { _ = ln.Close() })
	return ln
}

// FreePort returns a TCP address on the loopback that no process listens on, and that
// the kernel assigns to no other socket before a test listens there itself.
func FreePort(t testing.TB) string {
	t.Helper()
	ports, err := fleet.FreePorts(1)
	require.NoError(t, err)
	return net.JoinHostPort("127.0.0.1", strconv.Itoa(ports[0]))
}
