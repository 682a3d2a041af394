package upstream

import (
	"context"
	"errors"
	"net"
	"sync"
	"syscall"
	"time"
)

const (
	// maxRetryWait bounds the wait until another connection is dialled beside the
	// first. Linux repeats a lost SYN after 1 s (RFC 6298, 2.1), which is all of the
	// default --connect-timeout: one lost packet would fail the dial
	// (TestLostPacketOfAConnect).
	maxRetryWait = 300 * time.Millisecond
	// maxTries bounds the dials for one connection.
	maxTries = 3
)

// Dialer makes connections with TCP_NODELAY (Go's default), to allowed addresses
// only. While the first dial is unanswered, it starts others next to it.
type Dialer struct {
	net     net.Dialer
	timeout time.Duration // for all tries together
}

// NewDialer builds a Dialer.
func NewDialer(o Options) *Dialer {
	o.setDefaults()
	return &Dialer{net: net.Dialer{KeepAlive: 15 * time.Second, Control: o.Guard.Control}, timeout: o.ConnectTimeout}
}

// DialContext has the shape of net.Dialer.DialContext.
func (d *Dialer) DialContext(ctx context.Context, network, address string) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, d.timeout)
	defer cancel()
	a := attempt{dialer: d, ctx: ctx, cancel: cancel, network: network, address: address}
	a.mu.Lock() // timer is set before it goes off
	a.timer = time.AfterFunc(d.retryWait(), a.retry)
	a.mu.Unlock()
	nc, err := d.net.DialContext(ctx, network, address)
	return a.result(nc, err)
}

// retryWait is the time between the starts of two tries.
func (d *Dialer) retryWait() time.Duration { return min(d.timeout/maxTries, maxRetryWait) }

// attempt is one call of DialContext, with all its tries.
type attempt struct {
	dialer           *Dialer
	ctx              context.Context //nolint:containedctx // of all its tries
	cancel           context.CancelFunc
	network, address string

	mu    sync.Mutex // guards what follows
	timer *time.Timer
	extra int // tries beside the first
	done  bool
	conn  net.Conn // of an extra try
	err   error    // of an extra try
}

// retry starts an extra try, beside those that run.
func (a *attempt) retry() {
	a.mu.Lock()
	if a.done {
		a.mu.Unlock()
		return
	}
	if a.extra++; a.extra < maxTries-1 {
		a.timer.Reset(a.dialer.retryWait())
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
		a.cancel() // ends the first try, which DialContext waits for
	}
}

// result returns the outcome of all tries, when the first one has ended.
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
