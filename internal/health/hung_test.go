package health_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pdmesh/pdmesh/internal/engine/vllm"
	"github.com/pdmesh/pdmesh/internal/health"
	"github.com/pdmesh/pdmesh/internal/instance"
)

// coreFleet has the cores of some engines whose API servers always answer.
type coreFleet struct {
	tr *health.Tracker

	mu        sync.Mutex
	held      map[string]chan struct{} // hung cores, until the channel is closed
	step      map[string]float64       // tokens generated
	tried     map[string]float64       // trials answered
	unseen    map[string]bool          // engines with --disable-log-stats
	takes     map[string]time.Duration // duration of a trial
	refuses   map[string]bool          // trials
	unsent    map[string]bool          // engines whose trials cannot be sent
	suspended map[string]instance.View
	noRoutes  map[string]bool
	trials    map[string][]time.Time
	results   map[string]int
	asked     int // calls of CheckSuspended
	tokens    int64
	rate      float64
	received  map[string]uint64
	changing  map[string]bool // cores that make progress
	idle      map[string]bool // engines without queued requests
}

func newCores() *coreFleet {
	return &coreFleet{
		held: map[string]chan struct{}{}, step: map[string]float64{}, tried: map[string]float64{}, unseen: map[string]bool{}, takes: map[string]time.Duration{},
		refuses: map[string]bool{}, unsent: map[string]bool{}, suspended: map[string]instance.View{}, noRoutes: map[string]bool{}, trials: map[string][]time.Time{},
		results: map[string]int{}, received: map[string]uint64{}, changing: map[string]bool{}, idle: map[string]bool{},
	}
}

func (c *coreFleet) use(o *health.Options) {
	o.Read, o.Trial, o.Suspended = c.read, c.trial, c.state
	o.OnTrial = func(result string) {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.results[result]++
	}
	o.WaitingTokens = func(instance.Key) int64 {
		c.mu.Lock()
		defer c.mu.Unlock()
		return c.tokens
	}
	o.Received = func(k instance.Key) uint64 {
		c.mu.Lock()
		defer c.mu.Unlock()
		return c.received[k.Address]
	}
}

func (c *coreFleet) read(_ context.Context, in *instance.Instance) {
	c.mu.Lock()
	if c.changing[in.Address] {
		c.step[in.Address]++
	}
	ranks := reading(func(r *vllm.RankLoad) {
		r.GeneratedTokens = c.step[in.Address] + c.tried[in.Address]
		r.PromptTokens += c.tried[in.Address]
		if c.idle[in.Address] {
			r.Waiting = 0
		}
		r.CacheQueries, r.PrefillSeconds = 1000*c.rate, 1000
	})
	if c.unseen[in.Address] {
		ranks = nil
	}
	c.mu.Unlock()
	c.tr.Observe(in.Key, ranks)
}

func (c *coreFleet) trial(ctx context.Context, in *instance.Instance) error {
	c.mu.Lock()
	c.trials[in.Address] = append(c.trials[in.Address], time.Now())
	held, takes, refuses, unsent := c.held[in.Address], c.takes[in.Address], c.refuses[in.Address], c.unsent[in.Address]
	c.mu.Unlock()
	if unsent {
		return fmt.Errorf("%w: no descriptors", health.ErrNotSent)
	}
	if refuses {
		return fmt.Errorf("%w: 401", health.ErrRefused)
	}
	timer := time.NewTimer(takes)
	defer timer.Stop()
	var done <-chan struct{}
	if held != nil {
		done, timer = held, time.NewTimer(time.Hour)
	}
	select {
	case <-ctx.Done():
		return health.ErrNoAnswer
	case <-done:
	case <-timer.C:
	}
	c.set(func() { c.tried[in.Address]++ })
	return nil
}

func (c *coreFleet) state(_ context.Context, in *instance.Instance) (instance.View, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.asked++
	if c.noRoutes[in.Address] {
		return "", health.ErrNoRoute
	}
	return c.suspended[in.Address], nil
}

// hang stops cores until resume is called.
func (c *coreFleet) hang(addresses ...string) (resume func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	ch := make(chan struct{})
	for _, a := range addresses {
		c.held[a] = ch
	}
	return func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		for _, a := range addresses {
			delete(c.held, a)
			c.step[a]++
		}
		close(ch)
	}
}

func (c *coreFleet) set(f func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	f()
}

// runCores runs a test with a Tracker of some instances in virtual time.
func runCores(t *testing.T, change func(*health.Options), all []*instance.Instance, f func(*health.Tracker, *coreFleet)) {
	t.Helper()
	c := newCores()
	run(t, func(o *health.Options) {
		c.use(o)
		if change != nil {
			change(o)
		}
	}, func(tr *health.Tracker, src *source, _ *engine, _ *instance.Instance) {
		c.tr = tr
		src.set(slices.Clone(all)...)
		for _, in := range all {
			c.read(t.Context(), in)
		}
		f(tr, c)
	})
}

// waitEjected reports every second, like sched, that legs wait for an instance. It
// returns when the instance is ejected or the limit is over, with the duration.
func waitEjected(tr *health.Tracker, in *instance.Instance, limit time.Duration) (ejected bool, after time.Duration) {
	begun := time.Now()
	for time.Since(begun) < limit {
		tr.Suspect(in)
		for range 10 {
			time.Sleep(100 * time.Millisecond)
			if tr.View(in.Key) == instance.Ejected {
				return true, time.Since(begun)
			}
		}
	}
	return false, limit
}

func pair(role instance.Role) (a, b *instance.Instance) {
	return instanceAt(role, "d:1"), instanceAt(role, "d:2")
}

// A core that makes no progress is ejected once a peer answers a
// trial. It returns after a successful trial, in slow start.
func TestTracker_HungCore(t *testing.T) {
	t.Parallel()
	for _, role := range instance.Roles() {
		var dead atomic.Int64
		in, peer := pair(role)
		runCores(t, func(o *health.Options) {
			o.OnEject = func(_ instance.Key, d bool, _ string) {
				if d {
					dead.Add(1)
				}
			}
		}, []*instance.Instance{in, peer}, func(tr *health.Tracker, c *coreFleet) {
			resume := c.hang("d:1")
			ejected, after := waitEjected(tr, in, time.Minute)
			if e, _ := tr.Ejected(in.Key); !ejected || after > 7*time.Second || !strings.HasPrefix(e, "hung: ") || !strings.Contains(e, "d:2") {
				t.Fatalf("%s: ejected %t after %s: %s", role, ejected, after, e)
			}
			assert.True(t, tr.Unreachable(in.Key) && tr.Silent(in.Key) && tr.SilentFor(in.Key) >= 5*time.Second,
				"%s: not held against it: %s", role, tr.SilentFor(in.Key))
			time.Sleep(time.Minute) // its API server answers probes
			require.False(t, tr.Available(in.Key), "readmitted without a trial")
			resume()
			for begun := time.Now(); !tr.Available(in.Key); time.Sleep(100 * time.Millisecond) {
				require.LessOrEqual(t, time.Since(begun), 30*time.Second, "not readmitted after a successful trial")
			}
			s := tr.Share(in.Key)
			assert.LessOrEqual(t, s, 0.2, "share %v right after", s)
			assert.EqualValues(t, 0, dead.Load(),
				"a hung instance may still answer, and its legs were ended without an alternative")
		})
	}
}

// An instance is not ejected if it is slow, or if it cannot be compared with a peer.
func TestTracker_SlowIsNotHung(t *testing.T) {
	t.Parallel()
	in, peer := pair(instance.Decode)
	both := []*instance.Instance{in, peer}
	a, b := pair(instance.Decode)
	a.Record.Models, b.Record.Models = []string{"a"}, []string{"b"}
	for name, tc := range map[string]struct {
		all    []*instance.Instance
		change func(*coreFleet)
		keep   func(*coreFleet) // called every second
	}{
		"the last instance of its role":  {all: both[:1]},
		"the last instance of its model": {all: []*instance.Instance{a, b}},
		"all cores hang":                 {all: both, change: func(c *coreFleet) { c.hang("d:2") }},
		"peers answer trials as slowly":  {all: both, change: func(c *coreFleet) { c.takes["d:2"] = 20 * time.Second }},
		"--disable-log-stats": {all: both, change: func(c *coreFleet) {
			c.unseen["d:1"] = true
		}},
		"a long prompt at its own rate":                {all: both, change: func(c *coreFleet) { c.tokens, c.rate = 60_000, 1000 }},
		"a prompt of an engine that has computed none": {all: both, change: func(c *coreFleet) { c.tokens = 600 }},
		"requests wait in its queue":                   {all: both, change: func(c *coreFleet) { c.changing["d:1"] = true }},
		"its core answers trials while its requests wait for their KV cache": {all: both, change: func(c *coreFleet) {
			delete(c.held, "d:1")
		}},
		"it refuses trials, and peers have no requests": {all: both, change: func(c *coreFleet) { c.refuses["d:1"] = true }},
		"bytes of another leg":                          {all: both, keep: func(c *coreFleet) { c.received["d:1"]++ }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			runCores(t, nil, tc.all, func(tr *health.Tracker, c *coreFleet) {
				c.hang("d:1")
				if tc.change != nil {
					tc.change(c)
				}
				for _, one := range tc.all {
					c.read(t.Context(), one)
				}
				for range 60 {
					if ejected, after := waitEjected(tr, tc.all[0], time.Second); ejected {
						e, _ := tr.Ejected(in.Key)
						t.Fatalf("ejected after %s: %s", after, e)
					}
					if tc.keep != nil {
						c.set(func() { tc.keep(c) })
					}
				}
			})
		})
	}
}

// Trials caused by a waiting leg do not count as progress of the engine or
// of a peer: otherwise, no leg there would reach its time limit.
func TestTracker_TrialsNotProgress(t *testing.T) {
	t.Parallel()
	in, peer := pair(instance.Decode)
	runCores(t, nil, []*instance.Instance{in, peer}, func(tr *health.Tracker, c *coreFleet) {
		begun := time.Now()
		waitEjected(tr, in, time.Minute)
		for _, one := range []*instance.Instance{in, peer} {
			c.read(t.Context(), one)
			last, ran, _ := tr.Progress(one.Key)
			n := 0
			c.set(func() { n = len(c.trials[one.Address]) })
			if n < 6 || !last.Equal(begun) || !ran.After(begun) {
				t.Errorf("%s: %d trials, progress after %s, ran after %s", one.Address, n, last.Sub(begun), ran.Sub(begun))
			}
		}
	})
}

// An engine with a long prompt is ejected once the prompt takes
// several times as long as its earlier ones would suggest.
func TestTracker_HungWithAPrompt(t *testing.T) {
	t.Parallel()
	in, peer := pair(instance.Prefill)
	runCores(t, nil, []*instance.Instance{in, peer}, func(tr *health.Tracker, c *coreFleet) {
		c.set(func() { c.tokens, c.rate = 10_000, 2000 })
		c.read(t.Context(), in)
		c.hang("d:1")
		if ejected, after := waitEjected(tr, in, time.Minute); !ejected || after < 20*time.Second {
			t.Errorf("ejected %t after %s; 5 s are expected for its prompts", ejected, after)
		}
	})
}

// A pause that ends without intervention, such as the compilation of a grammar,
// causes no ejection, and extends the instance's limit for the next one.
func TestTracker_PauseOfACore(t *testing.T) {
	t.Parallel()
	in, peer := pair(instance.Decode)
	runCores(t, nil, []*instance.Instance{in, peer}, func(tr *health.Tracker, c *coreFleet) {
		for i, pause := range []time.Duration{4 * time.Second, 7 * time.Second, 12 * time.Second, 12 * time.Second, 12 * time.Second} {
			if i > 2 {
				time.Sleep(4 * time.Minute) // a pause counts even if it is no longer than the last one
			}
			resume := c.hang("d:1")
			ejected, after := waitEjected(tr, in, pause)
			require.False(t, ejected, "pause of %s: ejected after %s", pause, after)
			resume()
			c.set(func() { c.changing["d:1"] = true })
			waitEjected(tr, in, 5*time.Second)
			c.set(func() { c.changing["d:1"] = false })
		}
	})
}

// A hang is not a pause: an instance that hangs again is ejected as early as the first time.
func TestTracker_HangsAgain(t *testing.T) {
	t.Parallel()
	in, peer := pair(instance.Decode)
	runCores(t, nil, []*instance.Instance{in, peer}, func(tr *health.Tracker, c *coreFleet) {
		for range 4 {
			resume := c.hang("d:1")
			ejected, after := waitEjected(tr, in, time.Minute)
			require.True(t, ejected && after <= 7*time.Second, "ejected %t after %s", ejected, after)
			time.Sleep(40 * time.Second)
			resume()
			for !tr.Available(in.Key) {
				time.Sleep(100 * time.Millisecond)
			}
			time.Sleep(20 * time.Second)
		}
	})
}

// If trials are refused, an instance is ejected later, based only on bytes that peers send.
func TestTracker_HungWithoutTrials(t *testing.T) {
	t.Parallel()
	in, peer := pair(instance.Decode)
	runCores(t, nil, []*instance.Instance{in, peer}, func(tr *health.Tracker, c *coreFleet) {
		c.set(func() { c.refuses["d:1"], c.refuses["d:2"] = true, true })
		c.hang("d:1")
		begun := time.Now()
		for tr.Available(in.Key) && time.Since(begun) < time.Minute {
			c.set(func() { c.received["d:2"]++ })
			waitEjected(tr, in, time.Second)
		}
		d := time.Since(begun)
		assert.True(t, d >= 14*time.Second && d <= 20*time.Second, "ejected after %s", d)
	})
}

// Trials are repeated until one succeeds, at most one per interval, which doubles.
func TestTracker_FailedTrialsDoubleTheEjection(t *testing.T) {
	t.Parallel()
	in, peer := pair(instance.Decode)
	runCores(t, nil, []*instance.Instance{in, peer}, func(tr *health.Tracker, c *coreFleet) {
		c.hang("d:1")
		waitEjected(tr, in, time.Minute)
		time.Sleep(5 * time.Minute)
		c.mu.Lock()
		defer c.mu.Unlock()
		list := c.trials["d:1"]
		assert.True(t, len(list) >= 12 && len(list) <= 30, "%d trials in 5 minutes", len(list))
		for i := 1; i < len(list); i++ {
			d := list[i].Sub(list[i-1])
			assert.True(t, d >= 5*time.Second && d <= 40*time.Second, "trial %d came %s after the one before", i, d)
		}
		last := list[len(list)-1].Sub(list[len(list)-2])
		assert.GreaterOrEqual(t, last, 15*time.Second, "the last trial came %s after the one before", last)
		assert.GreaterOrEqual(t, c.results[health.TrialFailed], 10, "results %v", c.results)
	})
}

// After ejections because of a time limit, a successful probe is not
// enough, whatever the API server answers. After other ejections, it is.
func TestTracker_TimeoutsNeedATrial(t *testing.T) {
	t.Parallel()
	for _, timedOut := range []bool{true, false} {
		in, peer := pair(instance.Decode)
		runCores(t, nil, []*instance.Instance{in, peer}, func(tr *health.Tracker, c *coreFleet) {
			resume := c.hang("d:1")
			for range 3 {
				tr.Strike(in, "m", "first_byte_timeout", timedOut)
			}
			require.False(t, tr.Unreachable(in.Key), "not ejected, or not as at first")
			require.False(t, tr.Available(in.Key), "not ejected, or not as at first")
			time.Sleep(20 * time.Second)
			assert.NotEqual(t, timedOut, tr.Available(in.Key), "timed out: available")
			// It has failed a trial, so it is excluded even if most instances are ejected.
			assert.Equal(t, timedOut, tr.Unreachable(in.Key), "timed out: unreachable")
			resume()
			time.Sleep(30 * time.Second)
			assert.True(t, tr.Available(in.Key), "not readmitted")
		})
	}
}

// A trial that waits in the queue of an engine with progress does not count as failed.
func TestTracker_TrialOfFullEngine(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct{ changing, queued bool }{{true, true}, {true, false}, {false, true}} {
		in, peer := pair(instance.Decode)
		runCores(t, nil, []*instance.Instance{in, peer}, func(tr *health.Tracker, c *coreFleet) {
			c.set(func() {
				c.changing["d:1"], c.idle["d:1"], c.takes["d:1"] = tc.changing, !tc.queued, time.Hour
			})
			for range 3 {
				tr.Strike(in, "m", "prefill_timeout", true)
			}
			time.Sleep(20 * time.Second)
			assert.Equal(t, tc.changing && tc.queued, tr.Available(in.Key), "%+v: available", tc)
		})
	}
}

// A refused trial proves nothing: the probe readmits, as without trials.
func TestTracker_RefusedTrialReadmits(t *testing.T) {
	t.Parallel()
	in, peer := pair(instance.Decode)
	runCores(t, nil, []*instance.Instance{in, peer}, func(tr *health.Tracker, c *coreFleet) {
		c.set(func() { c.refuses["d:1"] = true })
		for range 3 {
			tr.Strike(in, "m", "first_byte_timeout", true)
		}
		time.Sleep(2 * time.Second)
		assert.True(t, tr.Available(in.Key), "not readmitted")
	})
}

// A trial that could not be sent is no failure of the engine, is not counted, and is sent later.
func TestTracker_TrialNotSent(t *testing.T) {
	t.Parallel()
	in, peer := pair(instance.Decode)
	runCores(t, nil, []*instance.Instance{in, peer}, func(tr *health.Tracker, c *coreFleet) {
		c.set(func() { c.unsent["d:1"] = true })
		for range 3 {
			tr.Strike(in, "m", "first_byte_timeout", true)
		}
		time.Sleep(time.Minute)
		assert.False(t, tr.Available(in.Key))
		assert.False(t, tr.Unreachable(in.Key))
		c.set(func() {
			assert.Empty(t, c.results, "results %v", c.results)
			c.unsent["d:1"] = false
		})
		time.Sleep(8 * time.Second)
		assert.True(t, tr.Available(in.Key), "not readmitted")
	})
}

// A trial that a former process did not answer says nothing about the next process.
func TestTracker_TrialOfFormerProcess(t *testing.T) {
	t.Parallel()
	peer := instanceAt(instance.Decode, "d:2")
	c := newCores()
	run(t, c.use, func(tr *health.Tracker, src *source, _ *engine, in *instance.Instance) {
		c.tr = tr
		src.set(in, peer)
		c.read(t.Context(), in)
		c.hang("d:1")
		for range 4 {
			tr.Suspect(in)
			time.Sleep(time.Second)
		}
		is := inst("b")
		src.set(is, peer)
		c.set(func() {
			delete(c.held, "d:1") // the core answers trials while requests wait
			c.trials["d:1"] = nil
		})
		ejected, _ := waitEjected(tr, is, 20*time.Second)
		c.set(func() {
			n := len(c.trials["d:1"])
			assert.True(t, !ejected && n != 0, "ejected %t after %d trials", ejected, n)
		})
	})
}

// A suspension ends with the process: the next one at the address is available at once.
func TestTracker_SuspendedEngineRestarts(t *testing.T) {
	t.Parallel()
	c := newCores()
	run(t, c.use, func(tr *health.Tracker, src *source, _ *engine, in *instance.Instance) {
		c.set(func() { c.suspended["d:1"] = instance.Sleeping })
		tr.CheckSuspended(t.Context(), in)
		require.Equal(t, instance.Sleeping, tr.View(in.Key))
		src.set(inst("b"))
		synctest.Wait()
		if tr.Trouble() || !tr.Available(in.Key) {
			t.Errorf("view %q", tr.View(in.Key))
		}
	})
}

// A sleeping or paused engine is neither picked nor ejected, and returns
// when it has resumed. An engine without the routes is queried once.
func TestTracker_SuspendedEngine(t *testing.T) {
	t.Parallel()
	for _, state := range []instance.View{instance.Sleeping, instance.Paused} {
		in, peer := pair(instance.Decode)
		runCores(t, nil, []*instance.Instance{in, peer}, func(tr *health.Tracker, c *coreFleet) {
			c.set(func() { c.noRoutes["d:2"] = true })
			tr.CheckSuspended(t.Context(), in)
			require.EqualValues(t, "", tr.View(in.Key))
			c.set(func() { c.suspended["d:1"] = state })
			c.hang("d:1")
			waitEjected(tr, in, 20*time.Second) // found while its legs wait
			if v := tr.View(in.Key); v != state || tr.Available(in.Key) || tr.Share(in.Key) != 0 {
				t.Fatalf("view %q, available %t, share %v", v, tr.Available(in.Key), tr.Share(in.Key))
			}
			tr.Success(in, "m")
			for range 5 {
				tr.Strike(in, "m", "status_503", false)
			}
			assert.Equal(t, state, tr.View(in.Key), "view after failures")
			c.set(func() { c.suspended["d:1"] = "" })
			time.Sleep(3 * time.Second)
			v := tr.View(in.Key)
			assert.True(t, v == "" && tr.Share(in.Key) != 0, "view %q after it has resumed", v)
			before := c.asked
			for range 10 {
				tr.CheckSuspended(t.Context(), peer)
			}
			assert.Equal(t, before+1, c.asked, "an engine without the routes was asked %d times", c.asked-before)
		})
	}
}
