package engine

import (
	"time"

	"github.com/pdmesh/pdmesh/sim/fakevllm/kvcache"
)

// Request is one request inside a core: its place in the batch, its turn to be computed,
// what it holds of the cache, and its clock. One goroutine uses it.
type Request struct {
	Core    *Core
	Life    *Lifetime
	Arrived time.Time

	prompts [][]int
	tokens  int  // of all prompts
	placed  bool // runs, and holds a place among MaxRunning
	turn    bool // it is this request's turn to be computed
	holds   []*kvcache.Hold
	hits    int // tokens found in the cache
	last    int // the last token generated
	kept    bool
	pace    pace
}

// Loaded is what a connector has brought of the prompts.
type Loaded struct {
	Tokens int
	Failed bool // the request ends by that, and nothing is computed
	Wrong  bool // it is of another prompt, so that nobody may find it in the cache
}

// Queue waits for a free place among MaxRunning, and for the request's turn; false means that
// the client left or the engine died. Prompts of one salt find each other's blocks.
func (r *Request) Queue(prompts [][]int, salt string) bool {
	c := r.Core
	if !r.step() {
		return false
	}
	r.prompts = prompts
	for _, ids := range prompts {
		r.tokens += len(ids)
	}
	if c.slots != nil || c.queues() {
		c.waiting.Add(1)
		defer c.waiting.Add(-1)
	}
	if c.slots != nil {
		select {
		case c.slots <- struct{}{}:
		case <-r.Life.Client:
			return false
		case <-r.Life.Engine:
			return false
		}
	}
	if !r.schedule(salt) || !r.step() {
		r.endTurn()
		r.Detach()()
		if c.slots != nil {
			<-c.slots
		}
		return false
	}
	c.Stats.Queue.Observe(time.Since(r.Arrived))
	c.running.Add(1)
	r.placed = true
	return true
}

// CountPrompts counts the prompts of a request that begins to run, for which a connector
// has brought so many tokens.
func (r *Request) CountPrompts(loaded int) {
	c, hits := r.Core, loaded
	if c.cache != nil {
		hits = r.hits
	}
	c.Count.PromptTokens.Add(int64(r.tokens))
	c.Stats.PromptTokens.Add(int64(r.tokens))
	c.Stats.CacheQueries.Add(int64(r.tokens))
	c.Stats.CacheHits.Add(int64(hits))
	c.Count.CacheQueries.Add(int64(r.tokens))
	c.Count.CacheHits.Add(int64(hits))
}

// Generated counts a token of the answer with that index.
func (r *Request) Generated(index, id int) {
	r.Core.Count.GenerationTokens.Add(1)
	r.Core.Stats.GenerationTokens.Add(1)
	if len(r.holds) == 0 || index != 0 {
		return
	}
	if r.kept { // a token is in the cache once another follows it
		r.holds[0].Append(r.last)
	}
	r.last, r.kept = id, true
}

// Release releases the slot and the part of the cache that is held, once.
func (r *Request) Release() {
	r.endTurn()
	r.Detach()()
	if !r.placed {
		return
	}
	r.placed = false
	r.Core.running.Add(-1)
	if r.Core.slots != nil {
		<-r.Core.slots
	}
}

// Detach leaves it to the caller to give back what is held of the cache.
func (r *Request) Detach() (free func()) {
	holds := r.holds
	r.holds = nil
	return func() {
		for _, h := range holds {
			h.Free()
		}
	}
}

// await waits for the request's turn.
func (r *Request) await() bool {
	if turn := r.Core.turns.join(); turn != nil && !r.Life.await(turn) {
		r.Core.turns.leave(turn)
		return false
	}
	r.turn = true
	return true
}

func (r *Request) endTurn() {
	if r.turn {
		r.turn = false
		r.Core.turns.leave(nil)
	}
}

// schedule waits for the request's turn and for room in the cache, and looks up
// what is in it already.
func (r *Request) schedule(salt string) bool {
	c := r.Core
	if !c.queues() {
		return true
	}
	if !r.await() {
		return false
	}
	if c.cache == nil {
		return true
	}
	for i, ids := range r.prompts {
		h := c.cache.TryTake(ids, salt)
		for waited := false; h == nil && i == 0; waited = true {
			if !r.awaitRoom() {
				r.endTurn()
				return false
			}
			if h = c.cache.TryTake(ids, salt); h != nil && !waited {
				c.turns.idle()
			}
		}
		if h == nil {
			continue // a further prompt without room is computed without the cache
		}
		r.holds = append(r.holds, h)
		r.hits += h.Cached()
	}
	return true
}

// recheck is how often a prompt without room looks whether a lease has ended.
const recheck = 100 * time.Millisecond

func (r *Request) awaitRoom() bool {
	timer := time.NewTimer(recheck)
	defer timer.Stop()
	select {
	case <-r.Core.cache.Room():
	case <-timer.C:
		r.Core.EndLeases()
	case <-r.Life.Client:
		return false
	case <-r.Life.Engine:
		return false
	}
	return true
}
