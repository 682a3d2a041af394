package testkit

import (
	"bufio"
	"bytes"
	"context"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pdmesh/pdmesh/sim/fleet"
	"github.com/pdmesh/pdmesh/sim/tcpserver"
)

// Pauses between two polls of Eventually. They grow with the time waited, so that a long wait
// does not compete for the CPU with what it waits for.
const (
	minPause = 5 * time.Millisecond
	maxPause = 100 * time.Millisecond
)

// Eventually polls cond until it returns nil. If it does not within timeout
// the test fails at once, with cond's last error. The timeout is for a broken
// program, so choose it generously; do not assert on the elapsed time.
func Eventually(t testing.TB, timeout time.Duration, cond func() error) {
	t.Helper()
	begun := time.Now()
	for {
		err := cond()
		if err == nil {
			return
		}
		waited := time.Since(begun)
		if waited >= timeout {
			t.Fatalf("did not happen within %s: %v", timeout, err)
		}
		select {
		case <-t.Context().Done():
			t.Fatalf("the test ended first: %v", err)
		case <-time.After(min(max(waited/10, minPause), maxPause)):
		}
	}
}

// EventuallyEqual polls get until it returns want, as Eventually does. about is printed with a failure.
func EventuallyEqual[T comparable](t testing.TB, timeout time.Duration, get func() T, want T, about ...any) {
	t.Helper()
	Eventually(t, timeout, func() error {
		if got := get(); got != want {
			return fmt.Errorf("got %v, want %v: %s", got, want, fmt.Sprint(about...))
		}
		return nil
	})
}

// EventuallyTrue polls cond until it returns true, as EventuallyEqual does.
func EventuallyTrue(t testing.TB, timeout time.Duration, cond func() bool, about ...any) {
	t.Helper()
	EventuallyEqual(t, timeout, cond, true, about...)
}

// Until polls get until done reports true of what it returns, as Eventually does.
func Until[T any](t testing.TB, timeout time.Duration, get func() T, done func(T) bool) {
	t.Helper()
	Eventually(t, timeout, func() error {
		if got := get(); !done(got) {
			return fmt.Errorf("%+v", got)
		}
		return nil
	})
}

// Contains reports whether a text contains all of the parts. If it does not, the test fails and continues.
func Contains(t testing.TB, text string, parts ...string) bool {
	t.Helper()
	missing := slices.DeleteFunc(slices.Clone(parts), func(part string) bool { return strings.Contains(text, part) })
	return assert.Empty(t, missing, "not in\n%s", text)
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

// update is looked up and not kept in a variable: several packages of one test
// binary may use Golden, and none of them should own a flag by being imported.
func update() bool {
	f := flag.Lookup("update")
	return f != nil && f.Value.String() == "true"
}

// GoldenFlag registers -update. A test package that uses Golden calls it at
// the start of its TestMain.
func GoldenFlag() {
	if flag.Lookup("update") == nil {
		flag.Bool("update", false, "write golden files instead of comparing with them")
	}
}

// Golden compares got with the file at path, below the package's directory.
// With -update it writes the file.
func Golden(t testing.TB, path string, got []byte) {
	t.Helper()
	if update() {
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
		require.NoError(t, os.WriteFile(path, got, 0o644))
		return
	}
	want, err := os.ReadFile(path)
	require.NoError(t, err, "golden %s (run the test with -update to write it)", path)
	require.Empty(t, cmp.Diff(string(want), string(got)), "golden %s differs (-want +got)", path)
}

// ShellCalls returns the arguments of every call of a program in the code blocks of the
// Markdown pages that match pattern, as a shell splits them.
func ShellCalls(t *testing.T, pattern, program string) (calls [][]string) {
	t.Helper()
	pages, err := filepath.Glob(pattern)
	if err != nil || len(pages) == 0 {
		t.Fatalf("no pages %s (%v)", pattern, err)
	}
	for _, page := range pages {
		text, err := os.ReadFile(page)
		require.NoError(t, err)
		for i, block := range strings.Split(string(text), "\n```") {
			if i%2 == 0 || !strings.HasPrefix(block, "\n") && !strings.HasPrefix(block, "sh\n") {
				continue
			}
			_, lines, _ := strings.Cut(block, "\n")
			// A PATH without programs keeps the shell from running other commands of the block.
			script := "PATH=/nowhere\n" +
				program + `() { printf '%s\0' "$@"; printf '\n\0'; }` + "\n" + lines + "\ntrue\n"
			out, err := exec.CommandContext(t.Context(), "bash", "-c", script).Output()
			require.NoError(t, err, "%s in\n%s", page, lines)
			for call := range strings.SplitSeq(strings.TrimSuffix(string(out), "\x00"), "\n\x00") {
				if call = strings.Trim(call, "\n"); call != "" {
					calls = append(calls, strings.Split(strings.TrimSuffix(call, "\x00"), "\x00"))
				}
			}
		}
	}
	return calls
}
