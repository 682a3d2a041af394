// Package connlimit bounds how many connections of clients are open, so that
// descriptors are left for the engines, etcd and files. A client that comes when
// all are taken gets the place of one that is connected and asks for nothing; if
// all others are being served it waits to be accepted.
//
// A server tells a Limit of its connections, and how to close idle ones.
package connlimit

import (
	"cmp"
	"net"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sirupsen/logrus"
)

const (
	// Spare is how long a connection is spared on which nothing has come yet: its
	// client is about to send.
	Spare = time.Second
	// batch is how many idle connections are closed at once at most: to find them
	// costs more than to close them.
	batch = 16
	// lookAgain is after how long idle ones are looked for again while somebody
	// waits.
	lookAgain = 100 * time.Millisecond
	// sayAgain is the least time between two lines in the log.
	sayAgain = time.Minute
)

// Limit bounds the connections of several servers together. A nil Limit bounds
// nothing. It is safe for concurrent use.
type Limit struct {
	most  int64
	log   logrus.FieldLogger
	open  atomic.Int64
	freed chan struct{} // capacity one

	mu     sync.Mutex // guards all below
	closed []func(n int) int
	said   time.Time
}

// New makes a Limit of most connections; 0 bounds nothing.
func New(most int, log logrus.FieldLogger) *Limit {
	if most <= 0 {
		return nil
	}
	return &Limit{most: int64(most), log: log, freed: make(chan struct{}, 1)}
}

// Opened is called when a server has taken a connection.
func (l *Limit) Opened() {
	if l != nil {
		l.open.Add(1)
	}
}

// Closed is called when a connection has ended.
func (l *Limit) Closed() {
	if l == nil {
		return
	}
	l.open.Add(-1)
	select {
	case l.freed <- struct{}{}:
	default:
	}
}

// WhenFull names a function that closes up to n idle connections and tells how
// many it has closed.
func (l *Limit) WhenFull(closeIdle func(n int) int) {
	if l == nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed = append(l.closed, closeIdle)
}

// Listen gives a listener that hands out connections within the limit.
func (l *Limit) Listen(ln net.Listener) net.Listener {
	if l == nil {
		return ln
	}
	return &listener{Listener: ln, limit: l, done: make(chan struct{})}
}

// listener waits for room after it has accepted: until somebody comes nobody has
// to go.
type listener struct {
	net.Listener
	limit *Limit
	once  sync.Once
	done  chan struct{}
}

// Accept implements net.Listener.
func (l *listener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	if !l.limit.await(l.done) {
		_ = c.Close()
		return nil, net.ErrClosed
	}
	return c, nil
}

// Close implements net.Listener.
func (l *listener) Close() error {
	l.once.Do(func() { close(l.done) })
	return l.Listener.Close()
}

// await waits until there is room; false means that done was closed before.
func (l *Limit) await(done <-chan struct{}) bool {
	if l.open.Load() < l.most {
		return true
	}
	tick := time.NewTicker(lookAgain)
	defer tick.Stop()
	for first := true; l.open.Load() >= l.most; first = false {
		n := l.makeRoom()
		if first {
			l.say(n)
		}
		select {
		case <-l.freed:
		case <-tick.C:
		case <-done:
			return false
		}
	}
	return true
}

// makeRoom closes idle connections.
func (l *Limit) makeRoom() (n int) {
	l.mu.Lock()
	closers := slices.Clone(l.closed)
	l.mu.Unlock()
	want := int(min(batch, l.most/8+1))
	for _, closeIdle := range closers {
		if n < want {
			n += closeIdle(want - n)
		}
	}
	return n
}

// say logs that the limit is reached, not too often.
func (l *Limit) say(idle int) {
	l.mu.Lock()
	late := time.Since(l.said) >= sayAgain
	if late {
		l.said = time.Now()
	}
	l.mu.Unlock()
	if !late {
		return
	}
	log := l.log.WithField("connections", l.most)
	if idle > 0 {
		log.Warn("as many clients are connected as descriptors or --max-connections allow: idle connections are closed for new ones")
	} else {
		log.Warn("as many clients are connected as descriptors or --max-connections allow, and all are being served: new ones wait")
	}
}

// Watch makes a server of the standard library tell the limit of its
// connections. It is called before the server serves.
func (l *Limit) Watch(s *http.Server) {
	if l == nil {
		return
	}
	w := &idle{limit: l, since: make(map[net.Conn]waiting)}
	s.ConnState = w.state
	l.WhenFull(w.close)
}

// idle holds the connections of a server that wait for a request.
type idle struct {
	limit *Limit
	mu    sync.Mutex // guards since
	since map[net.Conn]waiting
}

type waiting struct {
	since time.Time
	fresh bool // nothing has come yet
}

func (w *idle) state(c net.Conn, s http.ConnState) {
	w.mu.Lock()
	switch s {
	case http.StateNew, http.StateIdle:
		w.since[c] = waiting{time.Now(), s == http.StateNew}
	default:
		delete(w.since, c)
	}
	w.mu.Unlock()
	switch s {
	case http.StateNew:
		w.limit.Opened()
	case http.StateClosed, http.StateHijacked:
		w.limit.Closed()
	}
}

// close closes those that have waited longest. It does not wait for their ends: over TLS
// each may take five seconds, if its client does not read.
func (w *idle) close(n int) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	type one struct {
		conn  net.Conn
		since time.Time
	}
	var all []one
	for c, at := range w.since {
		if !at.fresh || time.Since(at.since) >= Spare {
			all = append(all, one{c, at.since})
		}
	}
	slices.SortFunc(all, func(a, b one) int { return cmp.Compare(a.since.Sub(b.since), 0) })
	all = all[:min(n, len(all))]
	for _, o := range all {
		delete(w.since, o.conn)            // so that nobody closes it twice
		go func() { _ = o.conn.Close() }() // its client may have done so just now
	}
	return len(all)
}
