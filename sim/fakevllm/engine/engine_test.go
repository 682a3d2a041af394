package engine_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

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
	require.True(t, first.Queue(prompt(3), "") && c.Running() == 1, "%d run", c.Running())
	second, leave, _ := request(c)
	close(leave)
	require.True(t, !second.Queue(prompt(3), "") && c.Waiting() == 0,
		"a client that has left got a place, or %d wait", c.Waiting())
	first.Release()
	first.Release()
	assert.EqualValues(t, 0, c.Running(), "run after the end")
	third, _, _ := request(c)
	assert.True(t, third.Queue(prompt(3), ""), "the place was not given back")
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
			require.True(t, r.Queue(prompt(10), ""), "no place")
			cached, ok := r.Prefill(tt.loaded, 0, 0)
			assert.True(t, ok && int64(cached) == tt.cached && c.Count.ComputedTokens.Load() == tt.computed,
				"%v: %d are cached, %d computed", ok, cached, c.Count.ComputedTokens.Load())
			r.Release()
			again, _, _ := request(c)
			require.True(t, again.Queue(prompt(10), ""), "no place")
			again.CountPrompts(0)
			hits := c.Count.CacheHits.Load()
			assert.Equal(t, tt.found, (hits == 8), "%d tokens are found by the next", hits)
		})
	}
}

// A request that waits for blocks ends expired leases, and stops when its engine dies.
func TestPrefill_CapacityNeverFrees(t *testing.T) {
	t.Parallel()
	c := core(engine.Config{CacheBlocks: 3})
	holder, _, _ := request(c)
	require.True(t, holder.Queue(prompt(10), ""), "no place")
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
	assert.False(t, r.Queue(prompt(10), ""), "there was room where none is")
	assert.True(t, c.Waiting() == 0 && c.Running() == 1, "%d wait, %d run", c.Waiting(), c.Running())
}

func TestLifetime(t *testing.T) {
	t.Parallel()
	leave, die := make(chan struct{}), make(chan struct{})
	l := &engine.Lifetime{Client: leave, Engine: die}
	assert.True(t, l.Alive() && l.Wait(0) && l.Wait(time.Microsecond) && !l.Dead(), "it has ended at once")
	l.Break()
	assert.True(t, !l.Alive() && !l.Wait(0) && l.Broken(), "it goes on after a write has failed")
	close(die)
	assert.True(t, !l.Wait(time.Hour) && l.Dead(), "it goes on with a dead engine")
}
