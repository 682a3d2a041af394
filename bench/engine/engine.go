package engine

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// Options describes an engine.
type Options struct {
	// Listen are the addresses to listen on, at least one. One engine may stand
	// for many instances. Port 0 takes a free one.
	Listen []string
	// ITL is the time between two tokens, see SetITL.
	ITL time.Duration
}

// Stats are counters since the start, and what is going on.
type Stats struct {
	Requests   uint64 // completions, any leg
	Prefills   uint64 // of these: asked for a hand-over
	Handovers  uint64 // of these: brought one, and the right one
	Violations uint64 // refused: no request at all, or another prompt's KV cache
	Aborts     uint64 // answers whose reader left before their end
	Active     int64  // paced answers under way
	LastAbort  time.Time
}

// Engine is a running engine.
type Engine struct {
	listeners []net.Listener
	pacer     *pacer
	itl       atomic.Int64
	started   time.Time

	requests, prefills, handovers, violations, aborts atomic.Uint64
	active, lastAbort                                 atomic.Int64

	work sync.WaitGroup

	mu     sync.Mutex // guards what follows
	conns  map[*conn]struct{}
	closed bool
}

// Start listens and serves until Close.
func Start(ctx context.Context, o Options) (*Engine, error) {
	e := &Engine{conns: make(map[*conn]struct{}), started: time.Now()}
	e.itl.Store(int64(o.ITL))
	var lc net.ListenConfig
	for _, addr := range o.Listen {
		ln, err := lc.Listen(ctx, "tcp", addr)
		if err != nil {
			e.Close()
			return nil, fmt.Errorf("engine: listen on %s: %w", addr, err)
		}
		e.listeners = append(e.listeners, ln)
	}
	if len(e.listeners) == 0 {
		return nil, errors.New("engine: no address to listen on")
	}
	e.pacer = newPacer()
	e.work.Go(e.pacer.run)
	for _, ln := range e.listeners {
		e.work.Go(func() { e.accept(ln) })
	}
	return e, nil
}

// Addresses are those it listens on, in the order of Options.Listen.
func (e *Engine) Addresses() []string {
	out := make([]string, len(e.listeners))
	for i, ln := range e.listeners {
		out[i] = ln.Addr().String()
	}
	return out
}

// SetITL changes the time between two tokens, for answers that begin
// afterwards; it must not be changed while paced answers are under way. Zero
// sends every token at once, in a write of its own.
func (e *Engine) SetITL(d time.Duration) { e.itl.Store(int64(d)) }

// Stats reads the counters.
func (e *Engine) Stats() Stats {
	s := Stats{
		Prefills: e.prefills.Load(), Handovers: e.handovers.Load(),
		Requests:   e.requests.Load(), // behind what they were: each is counted before that
		Violations: e.violations.Load(), Aborts: e.aborts.Load(), Active: e.active.Load(),
	}
	if at := e.lastAbort.Load(); at != 0 {
		s.LastAbort = time.Unix(0, at)
	}
	return s
}

// Close ends every connection and waits for everything.
func (e *Engine) Close() {
	for _, ln := range e.listeners {
		ln.Close()
	}
	e.mu.Lock()
	e.closed = true
	for c := range e.conns {
		_ = c.nc.Close()
		c.paced.readerLeft() // nobody writes it to its end any more
	}
	e.mu.Unlock()
	if e.pacer != nil {
		e.pacer.stop()
	}
	e.work.Wait()
}

func (e *Engine) accept(ln net.Listener) {
	for {
		nc, err := ln.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			// Out of file descriptors, most likely; some may come back.
			timer := time.NewTimer(10 * time.Millisecond)
			<-timer.C
			continue
		}
		c, err := newConn(e, nc.(*net.TCPConn)) // all listeners are TCP's
		if err != nil {
			nc.Close()
			continue
		}
		e.mu.Lock()
		if e.closed {
			e.mu.Unlock()
			nc.Close()
			continue
		}
		e.conns[c] = struct{}{}
		e.work.Add(1)
		e.mu.Unlock()
		go func() {
			defer e.work.Done()
			c.serve()
			nc.Close()
			e.mu.Lock()
			delete(e.conns, c)
			e.mu.Unlock()
		}()
	}
}

func (e *Engine) aborted() {
	e.aborts.Add(1)
	e.lastAbort.Store(time.Now().UnixNano())
}
