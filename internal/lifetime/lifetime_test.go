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

// limit is a cause that is a timeout.
type limit struct{}

func (limit) Error() string { return "too late" }
func (limit) Timeout() bool { return true }

// Err is one of the two that every user of a context knows; the cause is beside it.
func TestErrAndCause(t *testing.T) {
	t.Parallel()
	for cause, want := range map[error]error{errFirst: context.Canceled, limit{}: context.DeadlineExceeded, context.DeadlineExceeded: context.DeadlineExceeded} {
		var c valued
		if c.Err() != nil || context.Cause(&c) != nil || c.Value("x") != nil {
			t.Fatal("it does not run")
		}
		c.Cancel(cause)
		if c.Err() != want || context.Cause(&c) != cause || c.Value("x") != nil {
			t.Errorf("%v: Err %v, cause %v", cause, c.Err(), context.Cause(&c))
		}
	}
}

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
	if !errors.Is(c.Err(), context.Canceled) || !errors.Is(context.Cause(&c), errFirst) || !errors.Is(c.Settle(), errFirst) {
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

// TestFinish ends it for good, whatever was before.
func TestFinish(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name   string
		before func(c *valued)
		cause  error
	}{
		{"nobody waits", func(*valued) {}, errSecond},
		{"somebody did", func(c *valued) { lifetime.AfterFunc(c, func() {}).Stop() }, errSecond},
		{"somebody does", func(c *valued) { lifetime.AfterFunc(c, func() {}) }, errSecond},
		{"somebody may", func(c *valued) { c.Done() }, errSecond},
		{"it has ended", func(c *valued) { c.CallOff(errFirst) }, errFirst},
		{"it was settled", func(c *valued) { _ = c.Settle() }, errSecond},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			var c valued
			tc.before(&c)
			c.Finish(errSecond)
			c.CallOff(errFirst)
			if <-c.Done(); !errors.Is(context.Cause(&c), tc.cause) {
				t.Errorf("ended with %v", context.Cause(&c))
			}
		})
	}
}
