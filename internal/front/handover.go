package front

import (
	"net"
	"sync"

	"github.com/pdmesh/pdmesh/internal/framing"
)

// handover is the listener of the standard library's server. It accepts the
// connections that front hands over.
type handover struct {
	address net.Addr
	given   chan net.Conn
	closed  chan struct{}
	once    sync.Once
}

var _ net.Listener = (*handover)(nil)

func newHandover() *handover {
	return &handover{given: make(chan net.Conn), closed: make(chan struct{})}
}

// give hands a connection over at the beginning of a request, with the bytes of that
// request that were read already.
func (h *handover) give(nc net.Conn, read []byte) {
	if len(read) > 0 {
		nc = &prefixedConn{Conn: nc, read: read}
	}
	nc = framing.Conn(nc)
	select {
	case h.given <- nc:
	case <-h.closed:
		_ = nc.Close()
	}
}

// Accept implements net.Listener.
func (h *handover) Accept() (net.Conn, error) {
	select {
	case nc := <-h.given:
		return nc, nil
	case <-h.closed:
		return nil, net.ErrClosed
	}
}

// Close implements net.Listener.
func (h *handover) Close() error {
	h.once.Do(func() { close(h.closed) })
	return nil
}

// Addr implements net.Listener.
func (h *handover) Addr() net.Addr { return h.address }

// prefixedConn is a connection from which some bytes were read already.
type prefixedConn struct {
	net.Conn
	read []byte
}

// Read gives the bytes that were read before, then reads on.
func (b *prefixedConn) Read(p []byte) (int, error) {
	if len(b.read) == 0 {
		return b.Conn.Read(p)
	}
	n := copy(p, b.read)
	if b.read = b.read[n:]; len(b.read) == 0 {
		b.read = nil
	}
	return n, nil
}

// CloseWrite lets the standard library's server end only its side, so that its answer
// to a request that it has not read to the end arrives.
func (b *prefixedConn) CloseWrite() error {
	if half, ok := b.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return nil
}
