package fakevllm

import (
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pdmesh/pdmesh/sim/fakevllm/answer"
	"github.com/pdmesh/pdmesh/sim/fakevllm/handover"
	"github.com/pdmesh/pdmesh/sim/fakevllm/kvcache"
	"github.com/pdmesh/pdmesh/sim/fakevllm/kvevents"
	"github.com/pdmesh/pdmesh/sim/fakevllm/metrics"
)

// core is one engine core with a KV cache and a queue of its own, of which vLLM has
// one for each data-parallel rank.
//
//	slot ──▶ turn ──▶ room in the cache ──▶ prefill ──▶ decode
//
// Prompts are computed one after the other in the order they came in, as vLLM's
// scheduler does with chunks of them; what is found in the cache is decided when
// a prompt's turn comes.
type core struct {
	opt  *Options
	rank int
	// engineID names it in this life. Its ledger and its side channel are its own.
	engineID string
	ledger   *handover.Ledger
	side     *handover.SideServer // nil unless hand-overs are fetched by it
	slots    chan struct{}        // nil without MaxRunning
	stats    metrics.Stats
	running  atomic.Int64
	waiting  atomic.Int64
	requests atomic.Int64        // it has run, see Server.Ranks
	cache    *kvcache.Cache      // nil for one without limits
	events   *kvevents.Publisher // nil for one that publishes none
	turns    turns
	prefill  atomic.Int64 // 1 while a prompt is computed
}

func newCore(o *Options, rank int, engineID string, e *kvevents.Publisher) *core {
	c := &core{opt: o, rank: rank, engineID: engineID, ledger: handover.NewLedger(engineID, o.handshake(), o.KVLease, o.Mode == P2P, o.Mode == NIXLPush), events: e}
	if o.MaxRunning > 0 {
		c.slots = make(chan struct{}, o.MaxRunning)
	}
	if o.CacheBlocks > 0 {
		var tell func(kvcache.Event)
		if e != nil {
			tell = e.Tell
		}
		c.cache = kvcache.New(kvcache.Config{BlockSize: o.BlockSize, Blocks: o.CacheBlocks, Seed: rand.Uint64(), Tell: tell})
	}
	return c
}

// queues tells that requests of this engine wait for their turn.
func (c *core) queues() bool { return c.cache != nil || c.opt.PrefillRate > 0 }

// drag is what a decode step takes beyond the time between tokens: the other
// sequences of the batch, and the part of a prompt that is computed with it.
func (c *core) drag(running int64) time.Duration {
	d := c.opt.ITLPerRequest * time.Duration(running-1)
	if c.opt.PrefillRate > 0 && c.prefill.Load() > 0 {
		d += seconds(float64(c.opt.ChunkTokens) / c.opt.PrefillRate)
	}
	return d
}

func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }

// turns lets one in at a time, first come, first served.
type turns struct {
	mu   sync.Mutex // guards everything below
	busy bool
	line []chan struct{}
	// ended is when the last turn was to end. Work that waited begins then, so
	// that the clock's coarseness does not add up.
	ended time.Time
}

// join gives the channel that is closed when the caller's turn has come, nil when
// that is now.
func (t *turns) join() chan struct{} {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.busy {
		t.busy, t.ended = true, time.Now()
		return nil
	}
	turn := make(chan struct{})
	t.line = append(t.line, turn)
	return turn
}

// leave ends a turn or, with its channel, the wait for one.
func (t *turns) leave(turn chan struct{}) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for i, other := range t.line {
		if other == turn {
			t.line = append(t.line[:i:i], t.line[i+1:]...)
			return
		}
	}
	if len(t.line) == 0 {
		t.busy = false
		return
	}
	close(t.line[0])
	t.line = t.line[1:]
}

// work adds to the time of the present turn and tells when it will have passed.
func (t *turns) work(d time.Duration) time.Time {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.ended = t.ended.Add(d)
	return t.ended
}

// idle tells the present turn that it has done nothing until now.
func (t *turns) idle() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.ended = time.Now()
}

// await waits for the request's turn; false means that the client left or the
// engine died.
func (x *exchange) await() bool {
	turn := x.core.turns.join()
	if turn != nil {
		select {
		case <-turn:
		case <-x.r.Context().Done():
			x.core.turns.leave(turn)
			return false
		case <-x.life.done:
			x.core.turns.leave(turn)
			return false
		}
	}
	x.turn = true
	return true
}

func (x *exchange) endTurn() {
	if x.turn {
		x.turn = false
		x.core.turns.leave(nil)
	}
}

// recheck is how often a prompt without room looks whether a lease has ended.
const recheck = 100 * time.Millisecond

// schedule waits for the request's turn and for room in the cache, and looks up
// what is in it already.
func (x *exchange) schedule(j *job) bool {
	if !x.core.queues() {
		return true
	}
	if !x.await() {
		return false
	}
	if x.core.cache == nil {
		return true
	}
	hits := 0
	for i, ids := range j.Prompts {
		h := x.core.cache.TryTake(ids, j.CacheSalt)
		for waited := false; h == nil && i == 0; waited = true {
			if !x.awaitRoom() {
				x.endTurn()
				return false
			}
			if h = x.core.cache.TryTake(ids, j.CacheSalt); h != nil && !waited {
				x.core.turns.idle()
			}
		}
		if h == nil {
			continue // a further prompt without room is computed without the cache
		}
		x.holds = append(x.holds, h)
		hits += h.Cached()
	}
	x.hits = hits
	return true
}

func (x *exchange) awaitRoom() bool {
	timer := time.NewTimer(recheck)
	defer timer.Stop()
	select {
	case <-x.core.cache.Room():
	case <-timer.C:
		x.core.ledger.Counts(time.Now()) // ends leases
	case <-x.r.Context().Done():
		return false
	case <-x.life.done:
		return false
	}
	return true
}

// compute lets the time pass that the connector needs to load what is elsewhere,
// and the engine to compute the rest.
func (x *exchange) compute(j *job) bool {
	if !x.core.queues() {
		return true
	}
	total := 0
	for _, ids := range j.Prompts {
		total += len(ids)
	}
	loaded := 0
	if j.Cached > x.hits { // the connector brings the rest
		loaded = j.Cached - x.hits
	}
	j.Cached = max(j.Cached, x.hits)
	if j.loadErr != nil {
		x.endTurn()
		return true
	}
	if loaded > 0 {
		x.endTurn()
		if rate := x.core.opt.LoadRate; rate > 0 && !x.wait(seconds(float64(loaded)/rate)) {
			return false
		}
	}
	rest := total - j.Cached
	x.life.count.computedTokens.Add(int64(rest))
	if rate := x.core.opt.PrefillRate; rate > 0 && rest > 1 {
		if !x.turn && !x.await() { // a load has failed
			return false
		}
		x.core.prefill.Store(1)
		ok := x.wait(time.Until(x.core.turns.work(seconds(float64(rest) / rate))))
		x.core.prefill.Store(0)
		if !ok {
			x.core.turns.idle() // who comes next does not wait for what nobody computes
			return false
		}
	}
	if !j.WrongKV {
		for _, h := range x.holds {
			h.Computed()
		}
	}
	x.endTurn()
	return true
}

// keep puts a token that was generated into the cache once another follows it.
func (x *exchange) keep(ln *answer.Lane, id int) {
	if len(x.holds) == 0 || ln.Index != 0 {
		return
	}
	if x.kept {
		x.holds[0].Append(x.last)
	}
	x.last, x.kept = id, true
}

// generated counts a token of a lane.
func (x *exchange) generated(ln *answer.Lane, id int) {
	x.life.generated(x.core, 1)
	x.keep(ln, id)
}

// unhold gives what the request has of the cache back.
func (x *exchange) unhold() { x.detach()() }

// detach leaves it to the caller to do so.
func (x *exchange) detach() (unhold func()) {
	holds := x.holds
	x.holds = nil
	return func() {
		for _, h := range holds {
			h.Free()
		}
	}
}
