package sock_test

import (
	"bytes"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pdmesh/pdmesh/internal/transport/sock"
	"github.com/pdmesh/pdmesh/sim/testkit"
	"github.com/pdmesh/pdmesh/sim/testkit/leak"
)

func TestMain(m *testing.M) { leak.Main(m) }

// pair returns both ends of a connection, a Conn and the peer's.
func pair(t testing.TB) (*sock.Conn, *net.TCPConn) {
	t.Helper()
	ln := testkit.Listen(t)
	dialled, err := net.Dial("tcp", ln.Addr().String())
	require.NoError(t, err)
	accepted, err := ln.Accept()
	require.NoError(t, err)
	ours, err := sock.New(dialled.(*net.TCPConn))
	require.NoError(t, err)
	t.Cleanup(func() { ours.Close(); accepted.Close() })
	return ours, accepted.(*net.TCPConn)
}

// TestReadWrite_BeyondBuffers sends more bytes than all buffers on the path can hold, in pieces of many sizes.
func TestReadWrite_BeyondBuffers(t *testing.T) {
	t.Parallel()
	for _, size := range []int{0, 1, 1000, 64 << 10, 64<<10 + 1, 96 << 10, 96<<10 + 1, 1 << 20, 32 << 20} {
		ours, peer := pair(t)
		sent := make([]byte, size)
		r := rand.New(rand.NewPCG(1, uint64(size)))
		_, _ = rand.NewChaCha8([32]byte{1}).Read(sent)
		var pieces [][]byte
		for rest := sent; len(rest) > 0; {
			n := min(r.IntN(2+size/50), len(rest)) // some are empty
			pieces = append(pieces, rest[:n])
			rest = rest[n:]
		}
		echoed := make(chan error, 1)
		go func() {
			_, err := io.Copy(peer, peer)
			echoed <- errors.Join(err, peer.CloseWrite())
		}()
		wrote := make(chan error, 1)
		go func() {
			rest, err := ours.WriteAll(pieces)
			assert.Len(t, rest, 0, "size %d: pieces are left", size)
			wrote <- errors.Join(err, ours.CloseWrite())
		}()
		got, err := io.ReadAll(ours)
		require.NoError(t, errors.Join(err, <-wrote, <-echoed), "size %d", size)
		assert.True(t, bytes.Equal(got, sent), "size %d: %d bytes came back, and not the same", size, len(got))
	}
}

// TestRestAfterADeadline sends the rest of a write that its deadline interrupted.
func TestRestAfterADeadline(t *testing.T) {
	t.Parallel()
	ours, peer := pair(t)
	_ = ours.SetWriteBuffer(64 << 10)
	_ = peer.SetReadBuffer(64 << 10)
	var sent []byte
	var pieces [][]byte
	for i := range 100 {
		p := bytes.Repeat([]byte{byte(i)}, 300_000+i)
		sent, pieces = append(sent, p...), append(pieces, p)
	}
	var first [1]byte
	came := make(chan error, 1)
	go func() {
		_, err := io.ReadFull(peer, first[:])
		came <- errors.Join(err, ours.SetWriteDeadline(time.Unix(1, 0)))
	}()
	rest, err := ours.WriteAll(pieces)
	require.ErrorIs(t, err, os.ErrDeadlineExceeded, "error")
	require.NoError(t, <-came)
	left := 0
	for _, p := range rest {
		left += len(p)
	}
	require.True(t, left != 0 && left != len(sent), "%d of %d bytes are left", left, len(sent))
	_ = ours.SetWriteDeadline(time.Time{})
	wrote := make(chan error, 1)
	go func() {
		_, err := ours.WriteAll(rest)
		wrote <- errors.Join(err, ours.CloseWrite())
	}()
	got, err := io.ReadAll(peer)
	require.NoError(t, errors.Join(err, <-wrote))
	got = append(first[:], got...)
	assert.True(t, bytes.Equal(got, sent), "%d bytes came, %d were sent", len(got), len(sent))
}

// TestErrors compares the errors with those of package net.
func TestErrors(t *testing.T) {
	t.Parallel()
	read := func(c *sock.Conn) error { _, err := c.Read(make([]byte, 10)); return err }
	write := func(c *sock.Conn) error {
		for {
			if _, err := c.Write(make([]byte, 1<<20)); err != nil {
				return err
			}
		}
	}
	past := func(c *sock.Conn, _ *net.TCPConn) { _ = c.SetDeadline(time.Unix(1, 0)) }
	closed := func(c *sock.Conn, _ *net.TCPConn) { _ = c.Close() }
	meanwhile := func(c *sock.Conn, _ *net.TCPConn) { time.AfterFunc(time.Millisecond, func() { _ = c.Close() }) }
	ended := func(_ *sock.Conn, p *net.TCPConn) { _ = p.CloseWrite() }
	reset := func(_ *sock.Conn, p *net.TCPConn) { _ = p.SetLinger(0); _ = p.Close() }
	for _, c := range []struct {
		name   string
		before func(*sock.Conn, *net.TCPConn)
		do     func(*sock.Conn) error
		want   []error
	}{
		{"read late", past, read, []error{os.ErrDeadlineExceeded}},
		{"write late", past, write, []error{os.ErrDeadlineExceeded}},
		{"read of a closed one", closed, read, []error{net.ErrClosed}},
		{"write to a closed one", closed, write, []error{net.ErrClosed}},
		{"closed while reading", meanwhile, read, []error{net.ErrClosed}},
		{"closed while writing", meanwhile, write, []error{net.ErrClosed}},
		{"read behind the end", ended, read, []error{io.EOF}},
		{"read of a broken one", reset, read, []error{syscall.ECONNRESET}},
		{"write to a broken one", reset, write, []error{syscall.ECONNRESET, syscall.EPIPE}},
	} {
		ours, peer := pair(t)
		c.before(ours, peer)
		err := c.do(ours)
		assert.True(t, slices.ContainsFunc(c.want, func(want error) bool { return errors.Is(err, want) }),
			"%s: %v, want %v", c.name, err, c.want)
		var op *net.OpError
		assert.False(t, err != io.EOF && !errors.As(err, &op), "%s: %#v is no *net.OpError", c.name, err)
	}
	ours, _ := pair(t)
	n, err := ours.Read(nil)
	assert.True(t, n == 0 && err == nil, "Read(nil) = %d, %v", n, err)
}

func TestConsume(t *testing.T) {
	t.Parallel()
	words := func() [][]byte { return [][]byte{{}, []byte("ab"), {}, {}, []byte("cde"), []byte("f"), {}} }
	all := bytes.Join(words(), nil)
	for n := 0; n <= len(all); n++ {
		rest := sock.Consume(words(), n)
		got := bytes.Join(rest, nil)
		assert.True(t, bytes.Equal(got, all[n:]), "without %d bytes %q is left, want %q", n, got, all[n:])
		assert.False(t, len(rest) > 0 && len(rest[0]) == 0, "without %d bytes the first piece is empty", n)
	}
}
