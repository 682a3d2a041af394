package fakevllm

import (
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// Counters is a reading of what an engine did in all its lives.
type Counters struct {
	Requests         int64 `json:"requests"`          // completions and chat completions that arrived
	Completed        int64 `json:"completed"`         // answered to the end
	Rejected         int64 `json:"rejected"`          // answered 4xx by validation
	Failed           int64 `json:"failed"`            // 500s and error events
	Aborted          int64 `json:"aborted"`           // given up by the client
	Running          int64 `json:"running"`           // generating now
	Waiting          int64 `json:"waiting"`           // queued now
	PromptTokens     int64 `json:"prompt_tokens"`     // of requests that began to run
	GenerationTokens int64 `json:"generation_tokens"` //
	CacheQueries     int64 `json:"cache_queries"`     // prompt tokens looked for in the prefix cache
	CacheHits        int64 `json:"cache_hits"`        // of these, tokens found
	ComputedTokens   int64 `json:"computed_tokens"`   // prompt tokens computed by an engine with a queue
	LocalPrefills    int64 `json:"local_prefills"`    // prompts a decode engine had to compute itself
	Recomputed       int64 `json:"recomputed"`        // of these, after a hand-over that could not be used

	HandoversMade    int64 `json:"handovers_made"`    // prefills that gave out kv_transfer_params
	HandoversLoaded  int64 `json:"handovers_loaded"`  // fetched by this engine as decode
	HandoversRefused int64 `json:"handovers_refused"` // not given to this engine as decode
	HandoversWaiting int64 `json:"handovers_waiting"` // made by this engine, not fetched yet
	HandoversExpired int64 `json:"handovers_expired"` // of this life, never fetched
	BadHandovers     int64 `json:"bad_handovers"`     // kv_transfer_params of a wrong shape
	KVParams         int64 `json:"kv_params"`         // requests that carried kv_transfer_params at all
	Crashes          int64 `json:"crashes"`           // requests that would have crashed the engine
	WaitingForKV     int64 `json:"waiting_for_kv"`    // Mooncake decodes that wait for their prefill now
	Pulls            int64 `json:"pulls"`             // decodes that came to this life of a Mooncake or MoRI-IO prefill for blocks
	WrongKV          int64 `json:"wrong_kv"`          // answers made from the blocks of another prompt, wrong in their text
	ReusedTransfers  int64 `json:"reused_transfers"`  // transfer_ids that came a second time
	BootstrapQueries int64 `json:"bootstrap_queries"` // GET /query, from decodes and proxies
	Faults           int64 `json:"faults"`            // scripted faults that happened
	Violations       int64 `json:"violations"`
}

// counters live beside the lives: a restart does not reset them.
type counters struct {
	requests, completed, rejected, failed, aborted atomic.Int64
	promptTokens, generationTokens                 atomic.Int64
	cacheQueries, cacheHits, computedTokens        atomic.Int64
	localPrefills, recomputed                      atomic.Int64
	made, loaded, refused, badKV, kvParams         atomic.Int64
	crashes, violations                            atomic.Int64
	fetching, wrongKV, reused, bootstrapQueries    atomic.Int64
}

// Counters reads them all.
func (s *Server) Counters() Counters {
	c, l := &s.count, s.current()
	waiting, expired := l.pinned(time.Now())
	if l.isDead() {
		waiting = 0
	}
	return Counters{
		Requests: c.requests.Load(), Completed: c.completed.Load(), Rejected: c.rejected.Load(),
		Failed: c.failed.Load(), Aborted: c.aborted.Load(),
		Running: l.sum(func(c *core) int64 { return c.running.Load() }), Waiting: l.sum(func(c *core) int64 { return c.waiting.Load() }),
		PromptTokens: c.promptTokens.Load(), GenerationTokens: c.generationTokens.Load(),
		CacheQueries: c.cacheQueries.Load(), CacheHits: c.cacheHits.Load(), ComputedTokens: c.computedTokens.Load(),
		LocalPrefills: c.localPrefills.Load(), Recomputed: c.recomputed.Load(),
		HandoversMade: c.made.Load(), HandoversLoaded: c.loaded.Load(), HandoversRefused: c.refused.Load(),
		HandoversWaiting: waiting, HandoversExpired: expired,
		BadHandovers: c.badKV.Load(), KVParams: c.kvParams.Load(), Crashes: c.crashes.Load(),
		WaitingForKV: c.fetching.Load(), Pulls: l.transfers.Asked(), WrongKV: c.wrongKV.Load(), ReusedTransfers: c.reused.Load(), BootstrapQueries: c.bootstrapQueries.Load(),
		Faults: s.faults.Fired(), Violations: c.violations.Load(),
	}
}

// pinned tells how many prefills wait for their decode, and how many have done so
// in vain.
func (l *life) pinned(now time.Time) (waiting, expired int64) {
	if l.transfers != nil {
		return l.transfers.Counts(now)
	}
	for _, c := range l.cores {
		w, e := c.ledger.Counts(now)
		waiting, expired = waiting+w, expired+e
	}
	return waiting, expired
}

// notes is a bounded list of remarks; the first ones are kept.
type notes struct {
	mu   sync.Mutex // guards list
	list []string
}

func (n *notes) add(s string) {
	const limit = 10000
	n.mu.Lock()
	defer n.mu.Unlock()
	if len(n.list) < limit {
		n.list = append(n.list, s)
	}
}

func (n *notes) all() []string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.Clone(n.list)
}

// What is counted is written down before, so that whoever sees the number finds
// what it counts.

func (s *Server) noteAbort(id string) {
	s.aborts.add(id)
	s.count.aborted.Add(1)
}

func (s *Server) violation(format string, args ...any) {
	s.violations.add(fmt.Sprintf(format, args...))
	s.count.violations.Add(1)
}

// Aborted lists the ids ("chatcmpl-<X-Request-Id>") of requests whose client
// went away before the answer was complete, at most 10000.
func (s *Server) Aborted() []string { return s.aborts.all() }

// Violations lists what arrived although vLLM takes it that a good proxy does
// not send to an engine of this role; only with Options.StrictPrefill, but for
// what kills a Mooncake engine or makes it wait in vain.
func (s *Server) Violations() []string { return s.violations.all() }

// BadHandovers says what was wrong with each kv_transfer_params that had not
// the shape its connector wants. vLLM warns and computes the prompt itself.
func (s *Server) BadHandovers() []string { return s.badKV.all() }

// Refusals says why hand-overs could not be loaded by this engine.
func (s *Server) Refusals() []string { return s.refusals.all() }
