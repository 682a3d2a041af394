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
	// maxAgain is the longest wait until a connection is asked for once more. The
	// kernel repeats its first packet after 1 s, the whole of the default
	// --connect-timeout: without more of them, one that is lost would be the end.
	maxRetryWait = 300 * time.Millisecond
	// tries bounds how often a connection is asked for.
	maxTries = 3
)

// Dialer gives connections with TCP_NODELAY (Go's default), to allowed addresses
// only. While none comes, it asks for another one beside the first.
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

// again is how long one try is waited for alone.
func (d *Dialer) retryWait() time.Duration { return min(d.timeout/maxTries, maxRetryWait) }

// attempt is one connection that is asked for, maybe several times.
type attempt struct {
	dialer           *Dialer
	ctx              context.Context //nolint:containedctx // of all its tries
	cancel           context.CancelFunc
	network, address string

	mu    sync.Mutex // guards what follows
	timer *time.Timer
	extra int // tries beside the first
	done  bool
	conn  net.Conn // of a try beside the first
	err   error    // the same
}

// again is one more try, beside those that run.
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
		a.cancel() // the first one, which is waited for
	}
}

// end gives what came of it, when the first try has ended.
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
	if a.conn != nil { // both came
		_ = a.conn.Close()
	}
	return nc, nil
}
