package upstream

import (
	"context"
	"errors"
	"net"
	"syscall"
	"time"

	"github.com/pdmesh/pdmesh/internal/transport/sock"
)

const (
	// maxRetryWait bounds the time before another connection is dialled in parallel to
	// the first. Linux retransmits a lost SYN after 1 s (RFC 6298, 2.1), which is the
	// default --connect-timeout: one lost packet would fail the dial
	// (TestDial_LostSYN).
	maxRetryWait = 300 * time.Millisecond
	// maxTries bounds the number of dials for one connection.
	maxTries = 3
	// maxSilence bounds the time without an acknowledgement, of bytes or of keep-alives: a firewall that
	// has lost the connection drops its packets without a reset. It is longer than usual outages of a
	// network. On Linux it also ends a connection whose receive window stays full because the engine does
	// not read a large body, even if the peer acknowledges the probes.
	maxSilence = time.Minute
	keepIdle   = 15 * time.Second
	keepEvery  = 5 * time.Second
)

// Dialer opens TCP connections with TCP_NODELAY (Go's default), to allowed addresses
// only. While the first dial is unanswered, it starts others in parallel.
type Dialer struct {
	net     net.Dialer
	timeout time.Duration // of all tries together
	wait    time.Duration // between the starts of two tries
}

// NewDialer returns a Dialer.
func NewDialer(o Options) *Dialer {
	o.setDefaults()
	keep := net.KeepAliveConfig{Enable: true, Idle: keepIdle, Interval: keepEvery, Count: int((maxSilence - keepIdle) / keepEvery)}
	return &Dialer{net: net.Dialer{KeepAliveConfig: keep, Control: func(network, address string, c syscall.RawConn) error {
		sock.LimitSilence(c, maxSilence)
		return o.Guard.Control(network, address, c)
	}}, timeout: o.ConnectTimeout, wait: o.retryWait}
}

// DialContext connects to the address; it has the signature of net.Dialer.DialContext. It returns the
// result of the first dial, unless another one connects or is refused before.
func (d *Dialer) DialContext(ctx context.Context, network, address string) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, d.timeout)
	defer cancel()
	type result struct {
		conn net.Conn
		err  error
	}
	first, others, done := make(chan result), make(chan result), make(chan struct{})
	defer close(done)
	try := func(to chan<- result) {
		nc, err := d.net.DialContext(ctx, network, address)
		select {
		case to <- result{nc, err}:
		case <-done:
			if nc != nil {
				_ = nc.Close()
			}
		}
	}
	// A dial needs 3 KiB of stack. On the goroutine of a request, which lives as long as the client's
	// connection, it would double the stack to 16 KiB: a fifth of the memory of an idle stream.
	go try(first)
	due := time.NewTicker(d.wait)
	defer due.Stop()
	for tries := 1; ; {
		select {
		case r := <-first:
			return r.conn, r.err
		case r := <-others:
			if r.err == nil || errors.Is(r.err, syscall.ECONNREFUSED) {
				return r.conn, r.err
			}
		case <-due.C:
			if tries++; tries == maxTries {
				due.Stop()
			}
			go try(others)
		}
	}
}
