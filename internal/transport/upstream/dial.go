package upstream

import (
	"context"
	"errors"
	"net"
	"runtime"
	"sync"
	"syscall"
	"time"
)

const (
	// maxRetryWait bounds the time before another connection is dialled in parallel to
	// the first. Linux retransmits a lost SYN after 1 s (RFC 6298, 2.1), which is the
	// default --connect-timeout: one lost packet would fail the dial
	// (TestLostPacketOfAConnect).
	maxRetryWait = 300 * time.Millisecond
	// maxTries bounds the number of dials for one connection.
	maxTries = 3
	// maxSilence is how long the peer may acknowledge nothing, neither bytes nor keep-alives: a
	// firewall that has lost the connection drops its packets without a reset. It is longer than
	// usual outages of a network. On Linux it also ends a connection whose receive window stays
	// full, even if the peer acknowledges the probes: the engine reads nothing of a large body.
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
		limitSilence(c)
		return o.Guard.Control(network, address, c)
	}}, timeout: o.ConnectTimeout, wait: o.retryWait}
}

// limitSilence sets TCP_USER_TIMEOUT on Linux: keep-alives do not run while bytes are unacknowledged, and
// Linux retransmits those for 15 minutes (tcp_retries2). A kernel without the option is no error.
func limitSilence(c syscall.RawConn) {
	const userTimeout = 18 // TCP_USER_TIMEOUT, in milliseconds
	if runtime.GOOS == "linux" {
		_ = c.Control(func(fd uintptr) {
			_ = syscall.SetsockoptInt(int(fd), syscall.IPPROTO_TCP, userTimeout, int(maxSilence.Milliseconds()))
		})
	}
}

// DialContext connects to the address; it has the signature of net.Dialer.DialContext.
func (d *Dialer) DialContext(ctx context.Context, network, address string) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, d.timeout)
	defer cancel()
	a := attempt{dialer: d, ctx: ctx, cancel: cancel, network: network, address: address}
	a.mu.Lock() // retry must not run before a.timer is set
	a.timer = time.AfterFunc(d.wait, a.retry)
	a.mu.Unlock()
	nc, err := d.net.DialContext(ctx, network, address)
	return a.result(nc, err)
}

// attempt is one call of DialContext, with all its tries.
type attempt struct {
	dialer           *Dialer
	ctx              context.Context //nolint:containedctx // of all its tries
	cancel           context.CancelFunc
	network, address string

	mu    sync.Mutex // guards the fields below
	timer *time.Timer
	extra int // number of tries after the first
	done  bool
	conn  net.Conn // of an extra try
	err   error    // of an extra try
}

// retry starts an extra try, in parallel to those that run.
func (a *attempt) retry() {
	a.mu.Lock()
	if a.done {
		a.mu.Unlock()
		return
	}
	if a.extra++; a.extra < maxTries-1 {
		a.timer.Reset(a.dialer.wait)
	}
	a.mu.Unlock()
	nc, err := a.dialer.net.DialContext(a.ctx, a.network, a.address)
	a.mu.Lock()
	defer a.mu.Unlock()
	switch {
	case a.done && nc != nil:
		_ = nc.Close()
	case a.done:
	case err == nil, errors.Is(err, syscall.ECONNREFUSED):
		a.done, a.conn, a.err = true, nc, err
		a.cancel() // ends the first try, on which DialContext blocks
	}
}

// result returns the outcome of all tries; nc and err are that of the first.
func (a *attempt) result(nc net.Conn, err error) (net.Conn, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.timer.Stop()
	if !a.done {
		a.done = true
		return nc, err
	}
	if nc == nil {
		return a.conn, a.err
	}
	if a.conn != nil { // two tries succeeded
		_ = a.conn.Close()
	}
	return nc, nil
}
