package health

import (
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/pdmesh/pdmesh/internal/engine/vllm"
	"github.com/pdmesh/pdmesh/internal/instance"
)

// cores holds the progress of engine cores, by the address of the engine: an engine in both roles
// has one core. An API server answers /health, /v1/models and /metrics even if its core hangs, so
// only the core's own samples and bytes of answers show progress.
type cores struct {
	watched sync.Map // addresses for which there is a progressWatch

	mu        sync.Mutex
	byAddress map[string]*core
	noRoutes  map[string]string // incarnations of engines without the routes of CheckSuspended
}

// core is the last reading of the metrics of an engine.
type core struct {
	ranks    []vllm.RankLoad
	received uint64          // Options.Received at the last reading or call of Progress
	last     time.Time       // when progress was observed last
	base     []vllm.RankLoad // the reading at that time
	open     time.Time       // since when the difference may be unfinished trials; zero: no such difference
	ran      time.Time       // when the core was last observed to run
	read     time.Time       // when the last reading came
}

// Observe records a reading of an engine's metrics. No ranks, or ranks without the samples of their
// core (vllm.RankLoad.Core), mean that the progress of the engine cannot be observed: its metrics
// cannot be read, or it runs with --disable-log-stats.
func (t *Tracker) Observe(k instance.Key, ranks []vllm.RankLoad) {
	received, now := t.opts.Received(k), time.Now()
	t.cores.mu.Lock()
	defer t.cores.mu.Unlock()
	if len(ranks) == 0 || slices.ContainsFunc(ranks, func(r vllm.RankLoad) bool { return !r.Core }) {
		delete(t.cores.byAddress, k.Address)
		return
	}
	c := t.cores.byAddress[k.Address]
	if c == nil {
		c = &core{last: now, ran: now, received: received}
		t.cores.byAddress[k.Address] = c
	}
	c.observe(received, now)
	if !slices.EqualFunc(c.ranks, ranks, func(a, b vllm.RankLoad) bool { return a.SameCore(&b) }) {
		c.ran = now
	}
	c.compare(ranks, now)
	c.ranks, c.read = ranks, now
}

// Progress returns when progress of an engine's core was observed last, and whether it can be
// observed. Progress is a byte of an answer on any leg of this proxy, in either role, or a change
// of a sample that the core itself reports: running, waiting, KV cache usage, prompt tokens,
// generated tokens. Changes that trials of any proxy explain are not progress: a waiting leg causes
// trials, and would never reach its limit. They only update ran, when the core was last observed to
// run. The first reading counts as progress. If progress cannot be observed, last and ran are zero.
//
// A byte is dated by the next reading or the next call, so last may be late by the interval
// between readings: --scrape-interval, or 1 s while a leg has waited for a byte for a second.
// With several data-parallel ranks, progress of one rank is progress of the engine.
func (t *Tracker) Progress(k instance.Key) (last, ran time.Time, observable bool) {
	received, now := t.opts.Received(k), time.Now()
	t.cores.mu.Lock()
	defer t.cores.mu.Unlock()
	c := t.cores.byAddress[k.Address]
	if c == nil {
		return time.Time{}, time.Time{}, false
	}
	c.observe(received, now)
	return c.last, c.ran, true
}

// compare records progress if trials do not explain how a reading differs from c.base.
func (c *core) compare(ranks []vllm.RankLoad, now time.Time) {
	open := false
	only := slices.EqualFunc(ranks, c.base, func(is, was vllm.RankLoad) bool {
		only, more := is.TrialsSince(&was)
		open = open || more
		return only
	})
	switch {
	case !only, open && !c.open.IsZero() && now.Sub(c.open) >= trialLasts:
		c.base, c.last, c.open = ranks, now, time.Time{}
	case !open:
		c.open = time.Time{}
	case c.open.IsZero():
		c.open = now
	}
}

// observe records the time of answer bytes that have arrived since the last call.
func (c *core) observe(received uint64, now time.Time) {
	if c.received != received {
		c.received, c.last, c.ran = received, now, now
	}
}

// last returns the last reading of the metrics of an engine; the zero core if there is none.
func (cs *cores) last(address string) core {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	if c := cs.byAddress[address]; c != nil {
		return *c
	}
	return core{}
}

// queue reports whether requests are queued in an engine, by the last reading of its metrics. It
// returns false for an engine with several ranks, where one may hang while others have a queue.
func (cs *cores) queue(address string) bool {
	ranks := cs.last(address).ranks
	return len(ranks) == 1 && ranks[0].Waiting > 0
}

// prefillRate returns how many prompt tokens an engine has computed per second of prefill since
// it started, 0 if that is unknown.
func (cs *cores) prefillRate(address string) float64 {
	ranks, tokens, seconds := cs.last(address).ranks, 0.0, 0.0
	for i := range ranks {
		tokens += ranks[i].ComputedTokens()
		seconds += ranks[i].PrefillSeconds
	}
	if seconds <= 0 {
		return 0
	}
	return max(0, tokens/seconds)
}

// withoutRoutes reports whether an engine has answered that it lacks the routes of
// CheckSuspended.
func (cs *cores) withoutRoutes(in *instance.Instance) bool {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	id, known := cs.noRoutes[in.Address]
	return known && id == in.Incarnation()
}

// noteNoRoutes records that an engine lacks the routes, and drops records of engines that have left.
func (cs *cores) noteNoRoutes(in *instance.Instance, snap *instance.Snapshot) {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	maps.DeleteFunc(cs.noRoutes, func(address, _ string) bool {
		return !slices.ContainsFunc(instance.Roles(), func(role instance.Role) bool {
			_, member := snap.Lookup(instance.Key{Role: role, Address: address})
			return member
		})
	})
	cs.noRoutes[in.Address] = in.Incarnation()
}
