package agent

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/pdmesh/pdmesh/internal/engine/vllm"
	"github.com/pdmesh/pdmesh/internal/instance"
)

var (
	errSilent   = fmt.Errorf("GET /health: %w", vllm.ErrTimeout)
	errNotAsked = fmt.Errorf("GET /health: %w: too many open files", vllm.ErrNotSent)
	errStatus   = &vllm.StatusError{Code: 503}
)

// states returns the states that the registrar got, with the cause, such as "down slow".
func (r *fakeRegistrar) states() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	var out []string
	for _, rec := range r.records {
		out = append(out, strings.TrimSpace(string(rec.State)+" "+rec.Cause))
	}
	return strings.Join(out, ", ")
}

// An engine that does not answer may be busy; one that refuses or
// fails is down. Each step is the engine's reaction to one probe.
func TestProbe_SlowOrDown(t *testing.T) {
	many := func(n int, err error) []error {
		out := make([]error, n)
		for i := range out {
			out[i] = err
		}
		return out
	}
	join := func(parts ...[]error) (out []error) {
		for _, p := range parts {
			out = append(out, p...)
		}
		return out
	}
	for _, tc := range []struct {
		name  string
		steps []error
		o     Options
		want  string
	}{
		{"two unanswered", many(2, errSilent), Options{}, "ready"},
		{"three unanswered, fifteen seconds", many(3, errSilent), Options{}, "ready, down slow"},
		{"a longer limit", many(5, errSilent), Options{SlowAfter: 30 * time.Second}, "ready"},
		{"a longer limit has passed", many(6, errSilent), Options{SlowAfter: 30 * time.Second}, "ready, down slow"},
		{"short probes", many(7, errSilent), Options{ProbeTimeout: time.Second}, "ready"},
		{"short probes, for long enough", many(8, errSilent), Options{ProbeTimeout: time.Second}, "ready, down slow"},
		{"an answer between", join(many(2, errSilent), many(1, nil), many(2, errSilent)), Options{}, "ready"},
		{"a refusal between is an answer", join(many(2, errSilent), many(1, errStatus), many(2, errSilent)), Options{}, "ready"},
		{"refused", many(3, errRefused), Options{}, "ready, down connection refused"},
		{"its core is dead", many(3, errStatus), Options{}, "ready, down HTTP 503"},
		{"slow, then dead", join(many(4, errSilent), many(3, errStatus)), Options{}, "ready, down slow, down HTTP 503"},
		{"slow, then refusing once", join(many(4, errSilent), many(1, errRefused)), Options{}, "ready, down slow"},
		{"dead, then loading for long", join(many(3, errRefused), many(9, errSilent)), Options{}, "ready, down connection refused"},
		{"slow and back", join(many(4, errSilent), many(2, nil)), Options{}, "ready, down slow, ready"},
		{"slow and back for a moment", join(many(4, errSilent), many(1, nil), many(1, errSilent)), Options{}, "ready, down slow"},
		{"not sent", many(20, errNotAsked), Options{}, "ready"},
		{"not sent in between", join(many(2, errSilent), many(5, errNotAsked), many(1, errSilent)), Options{}, "ready, down slow"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				e := &fakeEngine{stats: idleStats()}
				r := start(t, e, tc.o)
				r.after(time.Second, nil) // good at 0
				for _, err := range tc.steps {
					before := e.probes
					r.engine.change(func(e *fakeEngine) { e.err = err })
					for e.seen() == before {
						r.after(100*time.Millisecond, nil)
					}
				}
				assert.Equal(t, tc.want, r.reg.states(), "the record said")
				r.leave()
			})
		})
	}
}

func (e *fakeEngine) seen() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.probes
}

// The last record of an instance never has an outdated cause.
func TestCause_OnlyWithItsState(t *testing.T) {
	for _, exit := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			exited := make(chan struct{})
			r := start(t, &fakeEngine{stats: idleStats()}, Options{Exited: exited})
			r.after(time.Second, func(e *fakeEngine) { e.err = errSilent })
			r.after(30*time.Second, nil)
			r.Hurry()
			want := "ready, down slow, draining"
			if exit {
				want = "ready, down slow, down"
				close(exited)
				<-r.done
			} else {
				_ = r.end()
			}
			assert.Equal(t, want, r.reg.states(), "the record said")
		})
	}
}

// hangingEngine does not answer, and reports how long each probe waited.
type hangingEngine struct {
	fakeEngine
	hung chan error
}

func (e *hangingEngine) Probe(ctx context.Context) (instance.Facts, error) {
	<-ctx.Done()
	e.hung <- context.Cause(ctx)
	return instance.Facts{}, fmt.Errorf("GET /health: %w", context.Cause(ctx))
}

// The time limit of a probe counts only while this process runs. A clock without
// ticks simulates a process without CPU time, which must not judge the engine.
func TestProbe_LimitCountsRunningTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ticks := make(chan time.Time)
		beats := 0
		ctx, stop := allow(t.Context(), 5*time.Second, ticks, func() { beats++ })
		time.Sleep(20 * time.Second) // four times the limit
		for range fairTicks - 1 {
			ticks <- time.Now()
		}
		synctest.Wait()
		assert.NoError(t, ctx.Err(), "the limit has passed although this process had no time to ask")
		ticks <- time.Now()
		<-ctx.Done()
		err := context.Cause(ctx)
		assert.True(t, errors.Is(err, vllm.ErrTimeout) && strings.Contains(err.Error(), "within 5s"), "cause %v", err)
		stop()
		assert.Equal(t, fairTicks, beats, "signs of life")

		// The probe ends in any case, but then says nothing about the engine.
		ctx, stop = allow(t.Context(), 5*time.Second, ticks, func() {})
		<-ctx.Done()
		assert.ErrorIs(t, context.Cause(ctx), errStarved)
		stop()
	})
}

// With a ticking clock, a probe ends exactly at its limit.
func TestHungEngine_DownAsSlow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := &hangingEngine{hung: make(chan error, 1)}
		a := New(e, &fakeRegistrar{start: time.Now()}, Options{Log: silentLog(), Key: instance.Key{Role: instance.Decode, Address: "10.0.0.7:8100"}})
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		start := time.Now()
		go func() { done <- a.Run(ctx) }()
		if err := <-e.hung; !errors.Is(err, vllm.ErrTimeout) || time.Since(start) != DefaultProbeTimeout {
			t.Errorf("after %s: %v", time.Since(start), err)
		}
		synctest.Wait()
		s := a.Status()
		assert.True(t, s.Phase == Probing && !s.Beat.Before(start.Add(4*time.Second)), "status %+v", s)
		cancel()
		<-done
	})
}

// An agent without CPU time for minutes does not judge its engine.
func TestStarvedAgent_KeepsState(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := &hangingEngine{hung: make(chan error, 1000)}
		reg := &fakeRegistrar{start: time.Now()}
		a := New(e, reg, Options{Log: silentLog(), Key: instance.Key{Role: instance.Decode, Address: "10.0.0.7:8100"}})
		a.ticks = func(time.Duration) (<-chan time.Time, func()) { return nil, func() {} }
		a.put(instance.Record{State: instance.Ready}) // as after a good probe
		a.up = true
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- a.Run(ctx) }()
		time.Sleep(time.Hour)
		synctest.Wait()
		if s := a.Status(); reg.states() != "ready" || !strings.Contains(s.Reason, "too little CPU time") || len(e.hung) < 3 {
			t.Errorf("the record said %q; %d probes; status %+v", reg.states(), len(e.hung), s)
		}
		a.Hurry()
		cancel()
		<-done
	})
}
