// Package engine is one engine core: its queue, its batch, its KV cache and its clock. vLLM has
// one for each data-parallel rank.
//
//	slot ──▶ turn ──▶ room in the cache ──▶ prefill ──▶ decode
//
// Prompts are computed one after the other in the order they came in, as vLLM's
// scheduler does with chunks of them; what is found in the cache is decided when
// a prompt's turn comes.
//
// Nothing in it knows HTTP or a connector: a Lifetime says when a request ends early, and
// Loaded what came from another engine.
package engine

import (
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pdmesh/pdmesh/sim/fakevllm/counters"
	"github.com/pdmesh/pdmesh/sim/fakevllm/kvcache"
	"github.com/pdmesh/pdmesh/sim/fakevllm/kvevents"
	"github.com/pdmesh/pdmesh/sim/fakevllm/metrics"
)

// Config describes a core.
type Config struct {
	Rank int
	ID   string // the engine id in this life

	MaxRunning  int // 0 is no limit
	BlockSize   int
	CacheBlocks int                 // 0 is a cache without limits, in which nothing is found
	Events      *kvevents.Publisher // of that cache, nil for none

	PrefillRate, LoadRate float64 // tokens a second, 0 is at once
	ITLPerRequest         time.Duration
	ChunkTokens           int

	Count *counters.Counters
	// EndLeases releases the blocks of offers whose lease has ended.
	EndLeases func()
}

// Core may be used from any goroutine.
type Core struct {
	Config
	Stats metrics.Stats

	slots    chan struct{} // nil without MaxRunning
	running  atomic.Int64
	waiting  atomic.Int64
	requests atomic.Int64
	cache    *kvcache.Cache // nil for one without limits
	turns    turns
	prefill  atomic.Int64 // 1 while a prompt is computed
	hold     hold
}

// New makes an idle one.
func New(conf Config) *Core {
	c := &Core{Config: conf, turns: turns{busy: make(chan struct{}, 1)}}
	if conf.MaxRunning > 0 {
		c.slots = make(chan struct{}, conf.MaxRunning)
	}
	if conf.CacheBlocks > 0 {
		var notify func(kvcache.Event)
		if conf.Events != nil {
			notify = conf.Events.Publish
		}
		c.cache = kvcache.New(kvcache.Config{BlockSize: conf.BlockSize, Blocks: conf.CacheBlocks, Seed: rand.Uint64(), Notify: notify})
	}
	return c
}

// Choose counts a request that is given to this core.
func (c *Core) Choose() { c.requests.Add(1) }

// Requests is how many it was given.
func (c *Core) Requests() int64 { return c.requests.Load() }

// Running is how many generate now.
func (c *Core) Running() int64 { return c.running.Load() }

// Waiting is how many are queued now.
func (c *Core) Waiting() int64 { return c.waiting.Load() }

// Finished counts one complete sequence.
func (c *Core) Finished(reason string) {
	if reason == "length" {
		c.Stats.Length.Add(1)
		return
	}
	c.Stats.Stop.Add(1)
}

// Metrics returns what /metrics shows of the core, while this number of offers wait.
func (c *Core) Metrics(offers int64) *metrics.Core {
	usage, blocks := min(1, float64(c.Running()+offers)/256), 65536
	if c.cache != nil {
		held := c.cache.Stats()
		usage, blocks = float64(held.Held)/float64(held.Blocks), held.Blocks
	}
	return &metrics.Core{
		Rank: c.Rank, Running: c.Running(), Waiting: c.Waiting(), Usage: usage, BlockSize: c.BlockSize, Blocks: blocks, Stats: &c.Stats,
	}
}

// queues reports whether requests of this core wait for their turn.
func (c *Core) queues() bool { return c.cache != nil || c.PrefillRate > 0 }

// drag is what a decode step takes beyond the time between tokens: the other
// sequences of the batch, and the part of a prompt that is computed with it.
func (c *Core) drag() time.Duration {
	d := c.ITLPerRequest * time.Duration(c.running.Load()-1)
	if c.PrefillRate > 0 && c.prefill.Load() > 0 {
		d += seconds(float64(c.ChunkTokens) / c.PrefillRate)
	}
	return d
}

func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }

// hold stops a core between two steps. Its zero value lets the core run.
type hold struct {
	resumed atomic.Pointer[chan struct{}] // closed when the core runs again; nil: it runs
}

// Hold stops the core, or lets it run again. While it is stopped no request of it makes
// progress. Requests still arrive, and those whose clients leave are dropped.
func (c *Core) Hold(on bool) {
	if on {
		ch := make(chan struct{})
		c.hold.resumed.CompareAndSwap(nil, &ch)
		return
	}
	if ch := c.hold.resumed.Swap(nil); ch != nil {
		close(*ch)
	}
}

// Held reports whether the core is stopped.
func (c *Core) Held() bool { return c.hold.resumed.Load() != nil }

// step blocks while the core is stopped; false means that the client left or the engine died.
func (r *Request) step() bool {
	for {
		ch := r.Core.hold.resumed.Load()
		if ch == nil {
			return true
		}
		if !await(r.Life, *ch) {
			return false
		}
	}
}

// turns lets one in at a time, first come, first served.
type turns struct {
	busy chan struct{} // has an element during a turn

	mu sync.Mutex // guards ended
	// ended is when the last turn was to end. Work that waited begins then, so
	// that the clock's coarseness does not add up.
	ended time.Time
}

// work adds to the time of the present turn and reports when it will have passed.
func (t *turns) work(d time.Duration) time.Time {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.ended = t.ended.Add(d)
	return t.ended
}

// idle notes that the present turn has done nothing until now.
func (t *turns) idle() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.ended = time.Now()
}
