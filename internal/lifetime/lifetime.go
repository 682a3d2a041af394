// Package lifetime is a context for the hot path: what several are made of for
// every request, at less than half the price of the standard ones.
package lifetime

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"
)

// Context can be ended once, with a cause. It is a context.Context without a
// deadline. The zero value runs. It must not be copied.
type Context struct {
	over atomic.Bool // it has ended: cause is set

	mu    sync.Mutex // guards what follows; never held while anything is called
	cause error      // why it has ended, nil while it runs
	done  chan struct{}
	// settled: CallOff does nothing any more.
	settled bool
	after   []ending
	room    [1]ending // of after: the one that nearly everybody needs
	given   int       // ids of endings given so far
}

// ending is a function to be called at the end.
type ending struct {
	id int
	f  func()
}

// Cancel ends the context; only the first cause counts.
func (c *Context) Cancel(cause error) {
	c.mu.Lock()
	c.endLocked(cause)
}

// CallOff is Cancel unless Settle came first.
func (c *Context) CallOff(cause error) {
	c.mu.Lock()
	if c.settled {
		c.mu.Unlock()
		return
	}
	c.endLocked(cause)
}

// Settle tells that there is no calling off any more. It gives the cause if the
// context has ended already.
func (c *Context) Settle() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.settled = true
	return c.cause
}

// endLocked takes the lock over and lets go of it.
func (c *Context) endLocked(cause error) {
	if c.cause != nil {
		c.mu.Unlock()
		return
	}
	c.cause = cause
	c.over.Store(true)
	if c.done != nil {
		close(c.done)
	}
	after := c.after
	c.after = nil
	c.mu.Unlock()
	for _, e := range after {
		e.f()
	}
}

// Err implements context.Context: DeadlineExceeded if the cause is a timeout,
// Canceled for every other one. context.Cause gives the cause.
func (c *Context) Err() error {
	cause := c.ended()
	if cause == nil {
		return nil
	}
	var timeout interface{ Timeout() bool }
	if errors.As(cause, &timeout) && timeout.Timeout() {
		return context.DeadlineExceeded
	}
	return context.Canceled
}

func (c *Context) ended() (cause error) {
	if !c.over.Load() {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.cause
}

// Value implements context.Context: it has none. Once the context has ended, a standard
// one that has ended with the same cause is asked, since context.Cause looks there and
// nowhere else. A type with values of its own asks this first.
func (c *Context) Value(key any) any {
	cause := c.ended()
	if cause == nil {
		return nil
	}
	ctx, cancel := context.WithCancelCause(context.Background())
	cancel(cause)
	return ctx.Value(key)
}

// Done implements context.Context.
func (c *Context) Done() <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.done == nil {
		c.done = make(chan struct{})
		if c.cause != nil {
			close(c.done)
		}
	}
	return c.done
}

// Finish is Settle and Cancel.
func (c *Context) Finish(cause error) {
	c.mu.Lock()
	c.settled = true
	c.endLocked(cause)
}

// Deadline implements context.Context: what ends it is not known beforehand.
func (c *Context) Deadline() (time.Time, bool) { return time.Time{}, false }

// AfterFunc has f called when the context ends. stop takes f off again, and
// tells whether that kept it from being called.
func (c *Context) AfterFunc(f func()) (stop func() bool) {
	return c.attach(f).Stop
}

// attach is AfterFunc without a closure for stop.
func (c *Context) attach(f func()) Watch {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.cause != nil {
		go f() // the caller may hold what f needs
		return Watch{own: c}
	}
	c.given++ // ids begin at 1
	id := c.given
	if len(c.after) == 0 {
		c.after = c.room[:0]
	}
	c.after = append(c.after, ending{id, f})
	return Watch{own: c, id: id}
}

func (c *Context) takeOff(id int) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i, e := range c.after {
		if e.id == id {
			last := len(c.after) - 1
			c.after[i], c.after[last] = c.after[last], ending{}
			c.after = c.after[:last]
			return true
		}
	}
	return false
}

// Watch is a function that waits for the end of a context. The zero value waits
// for nothing.
type Watch struct {
	own  *Context
	id   int
	stop func() bool // of any other context
}

// Stop takes the function off again, and tells whether that kept it from being
// called. The zero value has none that could be: true.
func (w Watch) Stop() bool {
	switch {
	case w.own != nil:
		return w.own.takeOff(w.id)
	case w.stop != nil:
		return w.stop()
	}
	return true
}

// AfterFunc is context.AfterFunc, for less where ctx is made of a Context.
func AfterFunc(ctx context.Context, f func()) Watch {
	if own, ok := ctx.(interface{ attach(f func()) Watch }); ok {
		return own.attach(f)
	}
	return Watch{stop: context.AfterFunc(ctx, f)}
}
