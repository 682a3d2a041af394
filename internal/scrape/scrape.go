// Package scrape reads the metrics of engines: load, KV cache, and the samples that show
// whether an engine's core makes progress. If an engine does not answer, its load is what
// the proxies count themselves.
//
//	Source.Snapshot ──one after the other, over an interval──▶ Asker.Load ──▶ Options.Sink, Options.Observe
package scrape

import (
	"context"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/internal/sched/policy"
	"github.com/pdmesh/pdmesh/internal/sleep"
	"github.com/pdmesh/pdmesh/internal/vllm"
)

const (
	// atOnce bounds the questions that are open.
	atOnce = 8
	// timeout bounds one question.
	timeout = 2 * time.Second
	// stale is after how many intervals without an answer what was said last is
	// forgotten.
	stale = 3
)

// Asker asks an engine for its load.
type Asker interface {
	Load(ctx context.Context, in *instance.Instance) ([]vllm.RankLoad, error)
}

// Options configure a Scraper; all must be set.
type Options struct {
	Members func() *instance.Snapshot
	Asker   Asker
	Sink    func(k instance.Key, e *policy.Engine) // nil: nothing is known of it any more
	// Observe receives every reading; nil if there is none, or none any more.
	Observe func(k instance.Key, ranks []vllm.RankLoad)
	// Check is called after each reading of Run, for what metrics do not show.
	Check    func(ctx context.Context, in *instance.Instance)
	Interval time.Duration // between two readings of one engine
}

// Scraper asks all engines in turn.
type Scraper struct {
	o Options

	mu    sync.Mutex // guards known
	known map[instance.Key]time.Time
}

// New makes a Scraper.
func New(o Options) *Scraper { return &Scraper{o: o, known: map[instance.Key]time.Time{}} }

// Run asks until ctx ends, every engine once in an interval, spread over it.
func (s *Scraper) Run(ctx context.Context) {
	var open sync.WaitGroup
	defer open.Wait()
	room := make(chan struct{}, atOnce)
	for {
		began := time.Now()
		list := asked(s.o.Members())
		for i, in := range list {
			// Each has its part of the interval, and is asked somewhere in that.
			part := s.o.Interval / time.Duration(len(list))
			if !sleep.Until(ctx, began.Add(time.Duration(i)*part+rand.N(part+1))) {
				return
			}
			select {
			case <-ctx.Done():
				return
			case room <- struct{}{}:
			}
			open.Go(func() {
				s.Read(ctx, in)
				s.check(ctx, in)
				<-room
			})
		}
		s.forget()
		if !sleep.Until(ctx, began.Add(s.o.Interval)) {
			return
		}
	}
}

// asked are the instances that are worth a question: requests may go to them. An engine
// in both roles is asked once, as a decode instance.
func asked(snap *instance.Snapshot) []*instance.Instance {
	list := slices.Clone(snap.Usable(instance.Decode))
	for _, in := range snap.Usable(instance.Prefill) {
		if _, there := snap.Lookup(instance.Key{Role: instance.Decode, Address: in.Address}); !there {
			list = append(list, in)
		}
	}
	return list
}

// check bounds Options.Check: an engine that hangs must not delay the readings of others.
func (s *Scraper) check(ctx context.Context, in *instance.Instance) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	s.o.Check(ctx, in)
}

// Read reads the metrics of an engine once, in addition to the readings of Run.
func (s *Scraper) Read(ctx context.Context, in *instance.Instance) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	ranks, err := s.o.Asker.Load(ctx, in)
	if err != nil {
		return // the last reading stays in use until it is stale
	}
	now := time.Now()
	s.mu.Lock()
	s.known[in.Key] = now
	s.mu.Unlock()
	s.o.Observe(in.Key, ranks)
	if len(ranks) > 0 {
		s.o.Sink(in.Key, engine(now, in, ranks))
	}
}

// forget drops readings of engines that have left, and those that are stale.
func (s *Scraper) forget() {
	snap := s.o.Members()
	s.mu.Lock()
	defer s.mu.Unlock()
	for k, at := range s.known {
		if _, member := snap.Lookup(k); !member || time.Since(at) >= stale*s.o.Interval+timeout {
			delete(s.known, k)
			s.o.Sink(k, nil)
			s.o.Observe(k, nil)
		}
	}
}

// engine makes of what the ranks say what policies look at.
func engine(at time.Time, in *instance.Instance, ranks []vllm.RankLoad) *policy.Engine {
	e := &policy.Engine{At: at, Ranks: make([]policy.Rank, len(ranks))}
	own := make(map[int]int, len(ranks)) // as the engine numbers them
	for _, r := range ranks {
		own[r.Rank] = r.Rank
	}
	number := make(map[int]int, len(ranks))
	for as, is := range instance.LocalRanks(in, own) {
		number[is] = as
	}
	for i, r := range ranks {
		one := policy.Rank{
			Rank: number[r.Rank], Capacity: r.Blocks * r.Block, Usage: r.Usage,
			Running: r.Running, Waiting: r.Waiting, Starved: r.Starved, Deferred: r.Deferred, Fetching: r.Fetching,
		}
		e.Ranks[i] = one
		e.All.Capacity += one.Capacity
		e.All.Usage += one.Usage / float64(len(ranks))
		e.All.Running += one.Running
		e.All.Waiting += one.Waiting
		e.All.Starved += one.Starved
		e.All.Deferred += one.Deferred
		e.All.Fetching += one.Fetching
	}
	return e
}
