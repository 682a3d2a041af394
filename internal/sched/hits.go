package sched

import (
	"sync/atomic"

	"github.com/pdmesh/pdmesh/internal/instance"
)

// Hits is what prefill found in the cache of one engine, in tokens of all prompts.
type Hits struct {
	Asked    int64 // of prompts whose answer told how many they have
	Expected int64 // of them that the policy expected in the cache
	Found    int64 // of them that were there
}

// hits is one that is counted in.
type hits struct{ asked, expected, found atomic.Int64 }

// Prefilled is Computed by an instance that has told how many tokens the prompt has and
// how many of them were in its cache; 0 and 0 where it has not.
func (a *Assignment) Prefilled(tokens, cached int) {
	expected := a.Cached
	if tokens > 0 && a.Tokens > 0 {
		expected = int(int64(a.Cached) * int64(tokens) / int64(a.Tokens)) // both were estimates
	}
	a.Computed(tokens)
	if tokens == 0 {
		return
	}
	h := a.counter.hits
	h.asked.Add(int64(tokens))
	h.expected.Add(int64(expected))
	h.found.Add(int64(cached))
}

// Hits calls f for every prefill instance with what was found in its cache.
func (s *Scheduler) Hits(f func(k instance.Key, h Hits)) {
	s.counters.mu.RLock()
	defer s.counters.mu.RUnlock()
	for address, e := range s.counters.m {
		if e.present[side(instance.Prefill)] > 0 {
			f(instance.Key{Role: instance.Prefill, Address: address},
				Hits{e.hits.asked.Load(), e.hits.expected.Load(), e.hits.found.Load()})
		}
	}
}
