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

// never is when a test gives up that waits for what does not come.
const never = 30 * time.Second

// pair gives both ends of a connection, ours and the peer's.
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

// hears answers each message, which begins with its length, with its check sum.
func hears(peer *net.TCPConn) error {
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

// TestTurns says something and hears the answer, often on one connection: pieces of
// all sizes, more than the socket takes at once, and with a deadline that goes off
// at any moment.
func TestTurns(t *testing.T) {
	t.Parallel()
	for _, patience := range []time.Duration{patience, time.Nanosecond, 20 * time.Microsecond, 100 * time.Microsecond} {
		t.Run(patience.String(), func(t *testing.T) {
			t.Parallel()
			ours, peer := pair(t)
			ours.patience = patience
			done := make(chan error, 1)
			go func() { done <- hears(peer) }()
			sizes := []int{0, 1, 200, 4 << 10, 100 << 10, 8 << 20}
			for i := range 600 {
				a := append(make([]byte, 4), random(sizes[i%4], byte(i))...)
				b := random(sizes[i/4%4], byte(i+1))
				if i%40 == 0 {
					b = random(sizes[4+i/40%2], byte(i+1))
				}
				binary.BigEndian.PutUint32(a, uint32(len(a)-4+len(b)))
				want := crc32.ChecksumIEEE(append(bytes.Clone(a[4:]), b...))
				ours.Say(a, b)
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

// TestInOrder sends what was said before anything else.
func TestInOrder(t *testing.T) {
	t.Parallel()
	ours, peer := pair(t)
	pieces := []string{"e", "f", ""}
	ours.Say([]byte("a"), []byte("b"))
	if _, err := ours.Write([]byte("c")); err != nil {
		t.Fatal(err)
	}
	ours.Say([]byte("d"), nil)
	if err := ours.WriteEach(func() []byte { p := pieces[0]; pieces = pieces[1:]; return []byte(p) }); err != nil {
		t.Fatal(err)
	}
	ours.Say([]byte("g"), nil)
	for range 2 { // the second has nothing to send
		if err := ours.Flush(); err != nil {
			t.Fatal(err)
		}
	}
	_ = ours.Close()
	if got, err := io.ReadAll(peer); err != nil || string(got) != "abcdefg" {
		t.Errorf("%q came, %v", got, err)
	}
	if ours.Lost() {
		t.Error("something was lost")
	}
}

// settle returns when what the peer did is there to be read, and the poller has
// told so, to nobody.
func settle(t *testing.T, c *Conn) {
	t.Helper()
	for there := false; !there; {
		// Whoever waits here lets the poller look at all connections.
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

// TestOutOfTurn finds what the peer did before it was its turn.
func TestOutOfTurn(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name string
		do   func(*net.TCPConn) error
		want string
		err  error
	}{
		{"it ended its side", func(p *net.TCPConn) error { return p.CloseWrite() }, "", io.EOF},
		{"it talked", func(p *net.TCPConn) error { _, err := p.Write([]byte("hello")); return err }, "hello", nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			ours, peer := pair(t)
			ours.patience = time.Millisecond
			if err := tt.do(peer); err != nil {
				t.Fatal(err)
			}
			settle(t, ours)
			ours.Say([]byte("question"), nil)
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

// TestLost tells that the peer has gone before it was told something.
func TestLost(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name string
		send func(*Conn) error
	}{
		{"Read", func(c *Conn) error { _, err := c.Read(make([]byte, 10)); return err }},
		{"Read that looks first", func(c *Conn) error {
			c.patience = time.Nanosecond
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
			settle(t, ours)
			ours.Say([]byte("x"), nil)
			err := tt.send(ours)
			var op *net.OpError
			if !errors.As(err, &op) || op.Op != "write" || !errors.Is(err, syscall.EPIPE) && !errors.Is(err, syscall.ECONNRESET) {
				t.Errorf("error %v, want a broken pipe in writing", err)
			}
			if !ours.Lost() {
				t.Error("it is not lost")
			}
			if _, err := ours.Read(make([]byte, 1)); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
				t.Errorf("then a read gives %v", err)
			}
		})
	}
}

// TestReadErrors are those of the waiting, not of what was said.
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
			go func() { // when it has heard it
				_, _ = io.ReadFull(peer, make([]byte, 1))
				tt.do(ours, peer)
			}()
			ours.Say([]byte("x"), nil)
			if _, err := ours.Read(make([]byte, 10)); !errors.Is(err, tt.want) {
				t.Errorf("error %v, want %v", err, tt.want)
			}
			if ours.Lost() {
				t.Error("what was said is lost")
			}
		})
	}
}

// TestWriteEach sends pieces that are made in the same place, to a peer that is
// slower.
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

// TestWriteEachEnds when the peer leaves while it waits for room.
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
