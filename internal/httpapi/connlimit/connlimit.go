// Package connlimit bounds the open connections of HTTP clients, so that file
// descriptors remain for engines, etcd and files.
//
// A connection beyond the limit is accepted, too: the first request on it is refused,
// unless it is exempt, and the connection ends with the answer. Connections within the
// limit are never closed for new ones.
package connlimit

import (
	"context"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/sirupsen/logrus"
	"golang.org/x/time/rate"
)

const (
	// maxExcess bounds the connections beyond the limit. Further ones wait in the
	// kernel until one of them has ended.
	maxExcess = 64
	// firstRequest bounds the time of a connection beyond the limit until its first request, including
	// the TLS handshake.
	firstRequest = 2 * time.Second
	// silence replaces firstRequest, and bounds the read of an unused body, while there are maxExcess
	// connections beyond the limit.
	silence = 200 * time.Millisecond
)

// Limit bounds the connections of one server. A nil Limit bounds nothing. It is safe
// for concurrent use.
type Limit struct {
	limit, maxExcess int
	log              logrus.FieldLogger
	reached          rate.Sometimes // limits log entries about the limit

	mu     sync.Mutex // guards the fields below
	freed  sync.Cond  // signals that a connection has ended or may be closed, or that the listener was closed
	open   int
	excess map[net.Conn]*excess // those of the open connections that are beyond the limit
	closed bool
}

// excess is a connection that was beyond the limit when it was accepted.
type excess struct {
	conn    net.Conn
	timeout *time.Timer // closes the connection if it sends no request
	silent  time.Time   // start of the wait for the client; zero while a request is served
}

// New returns a Limit of n connections. n <= 0 means no limit.
func New(n int, log logrus.FieldLogger) *Limit {
	if n <= 0 {
		return nil
	}
	l := &Limit{limit: n, maxExcess: min(maxExcess, n/8+4), log: log, excess: map[net.Conn]*excess{}, reached: rate.Sometimes{Interval: time.Minute}}
	l.freed.L = &l.mu
	return l
}

// Listen returns a listener that accepts connections of ln until the limit and its
// excess are reached, and then waits for a connection to end.
func (l *Limit) Listen(ln net.Listener) net.Listener {
	if l == nil {
		return ln
	}
	return &listener{Listener: ln, limit: l}
}

type listener struct {
	net.Listener
	limit *Limit
}

// Accept implements net.Listener.
func (ln *listener) Accept() (net.Conn, error) {
	l := ln.limit
	l.mu.Lock()
	for l.open >= l.limit+l.maxExcess && !l.closed {
		l.closeSilent()
		l.freed.Wait()
	}
	l.mu.Unlock()
	return ln.Listener.Accept()
}

// Close implements net.Listener.
func (ln *listener) Close() error {
	l := ln.limit
	l.mu.Lock()
	l.closed = true
	l.freed.Broadcast()
	l.mu.Unlock()
	return ln.Listener.Close()
}

// contextKey is the key of an *excess in the context of its requests.
type contextKey struct{}

// Apply makes s count its connections and refuse requests on those beyond the limit,
// except requests for which exempt returns true. It must be called before s serves.
func (l *Limit) Apply(s *http.Server, exempt func(r *http.Request) bool, refuse http.HandlerFunc) {
	if l == nil {
		return
	}
	s.ConnContext = func(ctx context.Context, c net.Conn) context.Context {
		if e := l.opened(c); e != nil {
			return context.WithValue(ctx, contextKey{}, e)
		}
		return ctx
	}
	s.ConnState = func(c net.Conn, state http.ConnState) {
		if state == http.StateClosed || state == http.StateHijacked {
			l.ended(c)
		}
	}
	next := s.Handler
	s.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if e, ok := r.Context().Value(contextKey{}).(*excess); ok && !l.admit(e) {
			w.Header().Set("Connection", "close")
			if !exempt(r) {
				l.ignore(e)
				refuse(w, r)
				return
			}
			defer l.ignore(e)
		}
		next.ServeHTTP(w, r)
	})
}

// opened counts a connection that was accepted. It returns nil if the connection is
// within the limit.
func (l *Limit) opened(c net.Conn) *excess {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.open++
	if l.open-len(l.excess) <= l.limit {
		return nil
	}
	l.reached.Do(func() {
		l.log.WithField("connections", l.limit).Warn("connection limit reached: requests on further connections are answered with 503")
	})
	e := &excess{conn: c, timeout: time.AfterFunc(firstRequest, func() { _ = c.Close() }), silent: time.Now()}
	l.excess[c] = e
	return e
}

// admit reports whether a connection with a request is within the limit by now.
func (l *Limit) admit(e *excess) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	e.timeout.Stop()
	e.silent = time.Time{}
	if l.excess[e.conn] != nil && l.open-len(l.excess) < l.limit {
		delete(l.excess, e.conn)
	}
	return l.excess[e.conn] == nil
}

// ignore records that the server needs no further bytes of a connection beyond the limit.
func (l *Limit) ignore(e *excess) {
	l.mu.Lock()
	defer l.mu.Unlock()
	e.silent = time.Now()
	l.freed.Signal()
}

// closeSilent reduces the time that connections beyond the limit may wait for their clients to silence.
// The caller holds the lock.
func (l *Limit) closeSilent() {
	for _, e := range l.excess {
		if !e.silent.IsZero() {
			e.timeout.Reset(time.Until(e.silent.Add(silence)))
		}
	}
}

// ended removes a closed connection from the count.
func (l *Limit) ended(c net.Conn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.open--
	if e := l.excess[c]; e != nil {
		e.timeout.Stop()
		delete(l.excess, c)
	}
	l.freed.Signal()
}
