package wire

import (
	"bytes"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/pdmesh/pdmesh/internal/sock"
	"github.com/pdmesh/pdmesh/sim/testkit/leak"
)

func TestMain(m *testing.M) { leak.Main(m) }

// never is the time limit of a test that waits for something that does not come.
const never = 30 * time.Second

// pair returns both ends of a connection, ours and the peer's.
func pair(t *testing.T) (*Conn, *net.TCPConn) {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	dialled, err := net.Dial("tcp", ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	accepted, err := ln.Accept()
	if err != nil {
		t.Fatal(err)
	}
	ours, err := NewConn(dialled.(*net.TCPConn))
	if err != nil {
		t.Fatal(err)
	}
	watch := time.AfterFunc(never, func() { _ = ours.Close(); accepted.Close() })
	t.Cleanup(func() { watch.Stop(); _ = ours.Close(); accepted.Close() })
	return ours, accepted.(*net.TCPConn)
}

func random(n int, seed byte) []byte {
	b := make([]byte, n)
	_, _ = rand.NewChaCha8([32]byte{seed}).Read(b)
	return b
}

// answerSums answers each message with its check sum. A message begins with its length.
func answerSums(peer *net.TCPConn) error {
	for {
		var size [4]byte
		if _, err := io.ReadFull(peer, size[:]); err == io.EOF {
			return nil
		} else if err != nil {
			return err
		}
		sum := crc32.NewIEEE()
		if _, err := io.CopyN(sum, peer, int64(binary.BigEndian.Uint32(size[:]))); err != nil {
			return err
		}
		if _, err := peer.Write(sum.Sum(nil)); err != nil {
			return err
		}
	}
}

// TestTurns sends messages and reads the answers, many on one connection: pieces of all
// sizes, also more than the socket takes at once, and a deadline that expires at any
// moment.
func TestTurns(t *testing.T) {
	t.Parallel()
	for _, after := range []time.Duration{peekAfter, time.Nanosecond, 20 * time.Microsecond, 100 * time.Microsecond} {
		t.Run(after.String(), func(t *testing.T) {
			t.Parallel()
			ours, peer := pair(t)
			ours.peekAfter = after
			done := make(chan error, 1)
			go func() { done <- answerSums(peer) }()
			sizes := []int{0, 1, 200, 4 << 10, 100 << 10, 8 << 20}
			for i := range 600 {
				a := append(make([]byte, 4), random(sizes[i%4], byte(i))...)
				b := random(sizes[i/4%4], byte(i+1))
				if i%40 == 0 {
					b = random(sizes[4+i/40%2], byte(i+1))
				}
				binary.BigEndian.PutUint32(a, uint32(len(a)-4+len(b)))
				want := crc32.ChecksumIEEE(append(bytes.Clone(a[4:]), b...))
				ours.Queue(a, b)
				var got [4]byte
				if _, err := io.ReadFull(ours, got[:]); err != nil {
					t.Fatalf("turn %d: %v", i, err)
				}
				if binary.BigEndian.Uint32(got[:]) != want {
					t.Fatalf("turn %d: %d and %d bytes arrived otherwise", i, len(a), len(b))
				}
			}
			_ = ours.Close()
			if err := <-done; err != nil {
				t.Error(err)
			}
		})
	}
}

// TestInOrder: what is queued is sent before anything else.
func TestInOrder(t *testing.T) {
	t.Parallel()
	ours, peer := pair(t)
	pieces := []string{"e", "f", ""}
	ours.Queue([]byte("a"), []byte("b"))
	if _, err := ours.Write([]byte("c")); err != nil {
		t.Fatal(err)
	}
	ours.Queue([]byte("d"), nil)
	if err := ours.WriteEach(func() []byte { p := pieces[0]; pieces = pieces[1:]; return []byte(p) }); err != nil {
		t.Fatal(err)
	}
	ours.Queue([]byte("g"), nil)
	for range 2 { // the second has nothing to send
		if err := ours.Flush(); err != nil {
			t.Fatal(err)
		}
	}
	_ = ours.Close()
	if got, err := io.ReadAll(peer); err != nil || string(got) != "abcdefg" {
		t.Errorf("%q came, %v", got, err)
	}
	if ours.SendFailed() {
		t.Error("SendFailed is true")
	}
}

// waitUntilReadable returns when what the peer did can be read, and the poller has already
// reported it while no goroutine waited for it.
func waitUntilReadable(t *testing.T, c *Conn) {
	t.Helper()
	for there := false; !there; {
		// This read makes the poller look at all connections.
		a, b := pair(t)
		if _, err := b.Write([]byte("x")); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(a, make([]byte, 1)); err != nil {
			t.Fatal(err)
		}
		err := c.Sock().Raw().Control(func(fd uintptr) {
			_, err := sock.Peek(fd, make([]byte, 1))
			there = err != syscall.EAGAIN
		})
		if err != nil {
			t.Fatal(err)
		}
	}
}

// TestOutOfTurn: Read finds what the peer did before its turn.
func TestOutOfTurn(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name string
		do   func(*net.TCPConn) error
		want string
		err  error
	}{
		{"it closed its side", func(p *net.TCPConn) error { return p.CloseWrite() }, "", io.EOF},
		{"it sent something", func(p *net.TCPConn) error { _, err := p.Write([]byte("hello")); return err }, "hello", nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			ours, peer := pair(t)
			ours.peekAfter = time.Millisecond
			if err := tt.do(peer); err != nil {
				t.Fatal(err)
			}
			waitUntilReadable(t, ours)
			ours.Queue([]byte("question"), nil)
			p := make([]byte, 100)
			n, err := ours.Read(p)
			if string(p[:n]) != tt.want || !errors.Is(err, tt.err) {
				t.Errorf("read %q, %v, want %q, %v", p[:n], err, tt.want, tt.err)
			}
			if _, err := io.ReadFull(peer, p[:8]); err != nil || string(p[:8]) != "question" {
				t.Errorf("the peer got %q, %v", p[:8], err)
			}
		})
	}
}

// TestSendFailed: the peer is gone before the queued message is sent.
func TestSendFailed(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name string
		send func(*Conn) error
	}{
		{"Read", func(c *Conn) error { _, err := c.Read(make([]byte, 10)); return err }},
		{"Read that looks first", func(c *Conn) error {
			c.peekAfter = time.Nanosecond
			_, err := c.Read(make([]byte, 10))
			return err
		}},
		{"Flush", (*Conn).Flush},
		{"Write", func(c *Conn) error { _, err := c.Write([]byte("x")); return err }},
		{"WriteEach", func(c *Conn) error { return c.WriteEach(func() []byte { t.Error("it goes on"); return nil }) }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			ours, peer := pair(t)
			_ = peer.SetLinger(0)
			peer.Close()
			waitUntilReadable(t, ours)
			ours.Queue([]byte("x"), nil)
			err := tt.send(ours)
			var op *net.OpError
			if !errors.As(err, &op) || op.Op != "write" || !errors.Is(err, syscall.EPIPE) && !errors.Is(err, syscall.ECONNRESET) {
				t.Errorf("error %v, want a broken pipe in writing", err)
			}
			if !ours.SendFailed() {
				t.Error("SendFailed is false")
			}
			if _, err := ours.Read(make([]byte, 1)); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
				t.Errorf("then a read gives %v", err)
			}
		})
	}
}

// TestReadErrors: these errors come from reading, after the queued message was sent.
func TestReadErrors(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name string
		do   func(*Conn, *net.TCPConn)
		want error
	}{
		{"closed", func(c *Conn, _ *net.TCPConn) { _ = c.Close() }, net.ErrClosed},
		{"reset", func(_ *Conn, p *net.TCPConn) { _ = p.SetLinger(0); p.Close() }, syscall.ECONNRESET},
		{"ended", func(_ *Conn, p *net.TCPConn) { _ = p.CloseWrite() }, io.EOF},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			ours, peer := pair(t)
			go func() { // after it has read the message
				_, _ = io.ReadFull(peer, make([]byte, 1))
				tt.do(ours, peer)
			}()
			ours.Queue([]byte("x"), nil)
			if _, err := ours.Read(make([]byte, 10)); !errors.Is(err, tt.want) {
				t.Errorf("error %v, want %v", err, tt.want)
			}
			if ours.SendFailed() {
				t.Error("SendFailed is true")
			}
		})
	}
}

// TestWriteEach sends pieces that all use the same buffer, to a slower peer.
func TestWriteEach(t *testing.T) {
	t.Parallel()
	ours, peer := pair(t)
	_ = ours.Sock().SetWriteBuffer(16 << 10)
	var want []byte
	wrote := make(chan error, 1)
	go func() {
		n := 0
		buf := make([]byte, 100<<10)
		wrote <- errors.Join(ours.WriteEach(func() []byte {
			if n++; n > 300 {
				return nil
			}
			p := buf[:1+n%3*n*100]
			copy(p, random(len(p), byte(n)))
			want = append(want, p...)
			return p
		}), ours.Sock().CloseWrite())
	}()
	got, err := io.ReadAll(peer)
	if err := errors.Join(err, <-wrote); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Errorf("%d bytes came, and not those %d", len(got), len(want))
	}
}

// TestWriteEachEnds when the peer leaves while the send buffer is full.
func TestWriteEachEnds(t *testing.T) {
	t.Parallel()
	ours, peer := pair(t)
	go func() {
		_, _ = io.ReadFull(peer, make([]byte, 1))
		_ = peer.SetLinger(0)
		peer.Close()
	}()
	p := make([]byte, 64<<10)
	err := ours.WriteEach(func() []byte { return p })
	if !errors.Is(err, syscall.EPIPE) && !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("error %v, want a broken pipe", err)
	}
	_ = ours.Close()
	if err := ours.WriteEach(func() []byte { return p }); !errors.Is(err, net.ErrClosed) {
		t.Errorf("error %v, want that it is closed", err)
	}
}
