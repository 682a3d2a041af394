package engine_test

import (
	"testing"
	"time"

	"github.com/pdmesh/pdmesh/sim/fakevllm/counters"
	"github.com/pdmesh/pdmesh/sim/fakevllm/engine"
)

// request returns a request to a core. Closing leave disconnects its client; closing die ends its engine.
func request(c *engine.Core) (r *engine.Request, leave, die chan struct{}) {
	leave, die = make(chan struct{}), make(chan struct{})
	return &engine.Request{Core: c, Life: &engine.Lifetime{Client: leave, Engine: die}, Arrived: time.Now()}, leave, die
}

func core(conf engine.Config) *engine.Core {
	conf.Count, conf.EndLeases = new(counters.Counters), func() {}
	if conf.BlockSize == 0 {
		conf.BlockSize = 4
	}
	return engine.New(conf)
}

func prompt(n int) [][]int {
	ids := make([]int, n)
	for i := range ids {
		ids[i] = 100 + i
	}
	return [][]int{ids}
}

func TestBatch_Slots(t *testing.T) {
	t.Parallel()
	c := core(engine.Config{MaxRunning: 1})
	first, _, _ := request(c)
	if !first.Queue(prompt(3), "") || c.Running() != 1 {
		t.Fatalf("%d run", c.Running())
	}
	second, leave, _ := request(c)
	close(leave)
	if second.Queue(prompt(3), "") || c.Waiting() != 0 {
		t.Fatalf("a client that has left got a place, or %d wait", c.Waiting())
	}
	first.Release()
	first.Release()
	if c.Running() != 0 {
		t.Errorf("%d run after the end", c.Running())
	}
	third, _, _ := request(c)
	if !third.Queue(prompt(3), "") {
		t.Error("the place was not given back")
	}
}

// A request finds the tokens that the previous one computed. Tokens that a connector loaded are
// not computed.
func TestPrefill(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name             string
		loaded           engine.Loaded
		cached, computed int64
		found            bool // by the next request of this prompt
	}{
		{"nothing is there", engine.Loaded{}, 0, 10, true},
		{"a connector brought it", engine.Loaded{Tokens: 9}, 9, 1, true},
		{"it brought another prompt", engine.Loaded{Tokens: 9, Wrong: true}, 9, 1, false},
		{"the load has failed", engine.Loaded{Failed: true}, 0, 0, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			c := core(engine.Config{CacheBlocks: 10})
			r, _, _ := request(c)
			if !r.Queue(prompt(10), "") {
				t.Fatal("no place")
			}
			cached, ok := r.Prefill(tt.loaded, 0, 0)
			if !ok || int64(cached) != tt.cached || c.Count.ComputedTokens.Load() != tt.computed {
				t.Errorf("%v: %d are cached, %d computed", ok, cached, c.Count.ComputedTokens.Load())
			}
			r.Release()
			again, _, _ := request(c)
			if !again.Queue(prompt(10), "") {
				t.Fatal("no place")
			}
			again.CountPrompts(0)
			if hits := c.Count.CacheHits.Load(); (hits == 8) != tt.found {
				t.Errorf("%d tokens are found by the next", hits)
			}
		})
	}
}

// A request that waits for blocks ends expired leases, and stops when its engine dies.
func TestPrefill_CapacityNeverFrees(t *testing.T) {
	t.Parallel()
	c := core(engine.Config{CacheBlocks: 3})
	holder, _, _ := request(c)
	if !holder.Queue(prompt(10), "") {
		t.Fatal("no place")
	}
	if _, ok := holder.Prefill(engine.Loaded{}, 0, 0); !ok {
		t.Fatal("it was given up")
	}
	r, _, die := request(c)
	looked := 0
	c.EndLeases = func() {
		if looked++; looked == 2 {
			close(die)
		}
	}
	if r.Queue(prompt(10), "") {
		t.Error("there was room where none is")
	}
	if c.Waiting() != 0 || c.Running() != 1 {
		t.Errorf("%d wait, %d run", c.Waiting(), c.Running())
	}
}

func TestLifetime(t *testing.T) {
	t.Parallel()
	leave, die := make(chan struct{}), make(chan struct{})
	l := &engine.Lifetime{Client: leave, Engine: die}
	if !l.Alive() || !l.Wait(0) || !l.Wait(time.Microsecond) || l.Dead() {
		t.Error("it has ended at once")
	}
	l.Break()
	if l.Alive() || l.Wait(0) || !l.Broken() {
		t.Error("it goes on after a write has failed")
	}
	close(die)
	if l.Wait(time.Hour) || !l.Dead() {
		t.Error("it goes on with a dead engine")
	}
}
