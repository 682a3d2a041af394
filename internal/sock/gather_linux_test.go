//go:build !386 && !s390x

package sock_test

import (
	"bytes"
	"io"
	"testing"
	"time"

	"github.com/pdmesh/pdmesh/internal/sock"
)

// there is how many bytes a read would give now.
func there(t *testing.T, c *sock.Conn) int {
	t.Helper()
	n := 0
	p := make([]byte, 1<<20)
	if err := c.Raw().Control(func(fd uintptr) { n, _ = sock.Peek(fd, p) }); err != nil {
		t.Fatal(err)
	}
	return n
}

// TestGather waits for as many bytes as it was told, whether they are there already
// or come one by one, the first time and later.
func TestGather(t *testing.T) {
	t.Parallel()
	ours, peer := pair(t)
	p, q := make([]byte, 4<<10), make([]byte, 4<<10)
	for round := range 50 {
		n := 1 + round*37
		begin, sent := make(chan struct{}), make(chan error, 1)
		send := func() {
			<-begin
			for left := n; left > 0; {
				m := min(left, 1+n/30)
				if _, err := peer.Write(p[:m]); err != nil {
					sent <- err
					return
				}
				left -= m
			}
			sent <- nil
		}
		if round%2 == 0 { // all of it before
			close(begin)
			send()
		} else {
			go send()
			close(begin)
		}
		if err := ours.Gather(n, never); err != nil {
			t.Fatal(err)
		}
		if got := there(t, ours); got < n {
			t.Fatalf("round %d: it waited for %d bytes of %d", round, got, n)
		}
		if err := <-sent; err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(ours, q[:n]); err != nil {
			t.Fatal(err)
		}
	}
}

// TestGatherOneBehindTheOther has what is there wake it, not only what comes.
func TestGatherOneBehindTheOther(t *testing.T) {
	t.Parallel()
	ours, peer := pair(t)
	if _, err := peer.Write(make([]byte, 100)); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		if err := ours.Gather(100, never); err != nil {
			t.Fatal(err)
		}
	}
	if got := there(t, ours); got != 100 {
		t.Errorf("%d bytes are there, want 100", got)
	}
}

// TestGatherEnds by the peer's end and in time, with less than it was told.
func TestGatherEnds(t *testing.T) {
	t.Parallel()
	ours, peer := pair(t)
	if _, err := peer.Write([]byte("ab")); err != nil {
		t.Fatal(err)
	}
	for range 3 { // in time
		if err := ours.Gather(1000, time.Millisecond); err != nil {
			t.Fatal(err)
		}
	}
	// What is there, and then the next byte that comes, are read as ever.
	p := make([]byte, 10)
	for _, want := range []string{"ab", "c", "d"} {
		if n, err := ours.Read(p); err != nil || string(p[:n]) != want {
			t.Fatalf("read %q, %v, want %q", p[:n], err, want)
		}
		if want == "d" {
			break
		}
		go func() { _, _ = peer.Write([]byte{want[len(want)-1] + 1}) }()
	}
	go func() { // by the peer's end
		_, _ = peer.Write([]byte("e"))
		_ = peer.CloseWrite()
	}()
	if err := ours.Gather(1000, never); err != nil {
		t.Fatal(err)
	}
	if got, err := io.ReadAll(ours); err != nil || !bytes.Equal(got, []byte("e")) {
		t.Fatalf("read %q, %v", got, err)
	}
}

// TestWaits undoes Gather for a caller's own steps.
func TestWaits(t *testing.T) {
	t.Parallel()
	ours, peer := pair(t)
	if err := ours.Gather(1000, time.Millisecond); err != nil {
		t.Fatal(err)
	}
	waited := make(chan struct{})
	go func() {
		<-waited
		_, _ = peer.Write([]byte("a"))
	}()
	_ = ours.SetReadDeadline(time.Now().Add(never))
	first := true
	if err := ours.Raw().Read(func(fd uintptr) bool {
		if first {
			first = false
			ours.Waits(fd)
			close(waited)
			return false
		}
		return true
	}); err != nil {
		t.Fatal(err)
	}
	if got := there(t, ours); got != 1 {
		t.Errorf("%d bytes are there, want 1", got)
	}
}
