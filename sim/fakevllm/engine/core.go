package engine

import (
	"math/rand/v2"
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
	// EndLeases releases the blocks of hand-overs whose time is over.
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
	c := &Core{Config: conf}
	if conf.MaxRunning > 0 {
		c.slots = make(chan struct{}, conf.MaxRunning)
	}
	if conf.CacheBlocks > 0 {
		var tell func(kvcache.Event)
		if conf.Events != nil {
			tell = conf.Events.Tell
		}
		c.cache = kvcache.New(kvcache.Config{BlockSize: conf.BlockSize, Blocks: conf.CacheBlocks, Seed: rand.Uint64(), Tell: tell})
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

// Metrics is what the page of metrics shows of it, while so many hand-overs wait.
func (c *Core) Metrics(handovers int64) *metrics.Core {
	usage, blocks := min(1, float64(c.Running()+handovers)/256), 65536
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
