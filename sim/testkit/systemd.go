package testkit

import (
	"fmt"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Systemd is the receiving end of NOTIFY_SOCKET.
type Systemd struct {
	Path string // of the socket

	mu  sync.Mutex // guards got
	got []string
}

// StartSystemd listens in a directory of the test until the test ends.
func StartSystemd(t testing.TB) *Systemd {
	t.Helper()
	s := &Systemd{Path: filepath.Join(t.TempDir(), "notify")}
	conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: s.Path, Net: "unixgram"})
	require.NoError(t, err)
	done := make(chan struct{})
	go func() {
		defer close(done)
		buf := make([]byte, 4096)
		for {
			n, err := conn.Read(buf)
			if err != nil {
				return
			}
			s.mu.Lock()
			s.got = append(s.got, string(buf[:n]))
			s.mu.Unlock()
		}
	}()
	t.Cleanup(func() { _ = conn.Close(); <-done })
	return s
}

// Messages returns what has come so far, each as it was sent.
func (s *Systemd) Messages() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.got)
}

// Count reports how many lines of messages begin so.
func (s *Systemd) Count(what string) int {
	return strings.Count("\n"+strings.Join(s.Messages(), "\n"), "\n"+what)
}

// Await waits until that many lines begin so.
func (s *Systemd) Await(t testing.TB, what string, times int) {
	t.Helper()
	Eventually(t, time.Minute, func() error {
		if n := s.Count(what); n < times {
			return fmt.Errorf("%q %d times in %q, want %d", what, n, s.Messages(), times)
		}
		return nil
	})
}
