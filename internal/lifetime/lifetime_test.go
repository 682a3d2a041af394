package lifetime_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/pdmesh/pdmesh/internal/lifetime"
	"github.com/pdmesh/pdmesh/internal/testkit/leak"
)

func TestMain(m *testing.M) { leak.Main(m) }

type valued struct{ lifetime.Context }

func (*valued) Value(any) any { return nil }

var errFirst, errSecond = errors.New("first"), errors.New("second")

func TestOnlyTheFirstCauseCounts(t *testing.T) {
	t.Parallel()
	var c valued
	early := c.Done()
	if c.Err() != nil || c.Settle() != nil {
		t.Fatal("it does not run")
	}
	c.CallOff(errFirst)
	if c.Err() != nil {
		t.Fatal("called off after it was settled")
	}
	c.Cancel(errFirst)
	c.Cancel(errSecond)
	<-early
	<-c.Done()
	if !errors.Is(c.Err(), errFirst) || !errors.Is(context.Cause(&c), errFirst) || !errors.Is(c.Settle(), errFirst) {
		t.Fatalf("ended with %v", c.Err())
	}
}

func TestCallOff(t *testing.T) {
	t.Parallel()
	var c valued
	c.CallOff(errFirst)
	<-c.Done()
	if cause := c.Settle(); !errors.Is(cause, errFirst) {
		t.Fatalf("settled: %v", cause)
	}
}

func TestAfterFunc(t *testing.T) {
	t.Parallel()
	var c valued
	called := make(chan int, 9)
	var stops []func() bool
	for i := range 4 {
		stops = append(stops, lifetime.AfterFunc(&c, func() { called <- i }).Stop)
	}
	if !stops[1]() || stops[1]() {
		t.Fatal("taking a function off does not work, or works twice")
	}
	c.Cancel(errFirst)
	sum := <-called + <-called + <-called
	if sum != 0+2+3 || stops[2]() {
		t.Fatalf("called: %d in sum", sum)
	}
	stop := c.AfterFunc(func() { called <- 7 })
	if got := <-called; got != 7 || stop() || (!lifetime.Watch{}.Stop()) {
		t.Fatalf("after the end: %d", got)
	}
	select {
	case i := <-called:
		t.Fatalf("%d was called as well", i)
	default:
	}
}

// A standard context takes it for its parent.
func TestAsParent(t *testing.T) {
	t.Parallel()
	var c valued
	ctx, cancel := context.WithTimeout(&c, time.Hour)
	defer cancel()
	std := make(chan struct{})
	watch := lifetime.AfterFunc(ctx, func() { close(std) })
	defer watch.Stop()
	c.Cancel(errFirst)
	<-ctx.Done()
	<-std
	if _, limited := c.Deadline(); limited || !errors.Is(context.Cause(ctx), errFirst) {
		t.Fatalf("cause %v", context.Cause(ctx))
	}
}

// TestFinish ends it for good, and tells whether anybody waits for that.
func TestFinish(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name    string
		before  func(c *valued)
		watched bool
		cause   error
	}{
		{"nobody waits", func(*valued) {}, false, errSecond},
		{"somebody did", func(c *valued) { lifetime.AfterFunc(c, func() {}).Stop() }, false, errSecond},
		{"somebody does", func(c *valued) { lifetime.AfterFunc(c, func() {}) }, true, errSecond},
		{"somebody may", func(c *valued) { c.Done() }, true, errSecond},
		{"it has ended", func(c *valued) { c.CallOff(errFirst) }, false, errFirst},
		{"it was settled", func(c *valued) { _ = c.Settle() }, false, errSecond},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			var c valued
			tc.before(&c)
			if got := c.Finish(errSecond); got != tc.watched {
				t.Errorf("watched: %v", got)
			}
			c.CallOff(errFirst)
			if <-c.Done(); !errors.Is(c.Err(), tc.cause) {
				t.Errorf("ended with %v", c.Err())
			}
		})
	}
}
