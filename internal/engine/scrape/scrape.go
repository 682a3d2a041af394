// Package scrape reads the metrics of engines periodically: load, KV cache, and the samples that show whether
// an engine's core makes progress. Without them, the load of an engine is known only from the proxies'
// counts.
//
//	Source.Snapshot ──one after the other, over an interval──▶ LoadReader.Load ──▶ Options.Sink, Options.Observe
//
// Decode engines that may be full are read each second, a few at a time: their reports show how many streams
// they can run.
package scrape

import (
	"context"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/pdmesh/pdmesh/internal/cli/sleep"
	"github.com/pdmesh/pdmesh/internal/engine/vllm"
	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/internal/sched/policy"
)

const (
	// maxConcurrent bounds the concurrent readings of a round.
	maxConcurrent = 8
	// timeout bounds one reading.
	timeout = 2 * time.Second
	// stale is the number of intervals without an answer after which the last reading is
	// discarded.
	stale = 3
	// fullInterval is the time between two readings of an engine that may be full.
	fullInterval = time.Second
	// mostFull bounds the engines that are read in a fullInterval because they may be full.
	mostFull = 8
)

// LoadReader reads the load of an engine.
type LoadReader interface {
	Load(ctx context.Context, in *instance.Instance) ([]vllm.RankLoad, error)
}

// Options configure a Scraper; all but Interval must be set.
type Options struct {
	Members func() *instance.Snapshot
	Reader  LoadReader
	Sink    func(k instance.Key, e *policy.Engine) // nil: the reading was discarded
	// Observe receives every reading; nil if it is empty or was discarded.
	Observe func(k instance.Key, ranks []vllm.RankLoad)
	// InFlight returns the number of requests that all proxies have in flight at an engine.
	InFlight func(k instance.Key) float64
	// Check is called after each reading of Run, for checks other than metrics.
	Check    func(ctx context.Context, in *instance.Instance)
	Interval time.Duration // between two readings of one engine; 0: no readings, and Run must not be called
}

// Scraper reads the metrics of all engines in turn. It is safe for concurrent use.
type Scraper struct {
	o Options

	mu    sync.Mutex // guards known
	known map[instance.Key]reading
}

// reading has the facts of an engine's last reading.
type reading struct {
	at     time.Time
	queued bool // requests waited in it
	// most is the largest number of requests that the engine has reported.
	most float64
}

// New returns a Scraper.
func New(o Options) *Scraper { return &Scraper{o: o, known: map[instance.Key]reading{}} }

// Run reads the metrics of every engine once in each interval, spread over it, until ctx ends.
func (s *Scraper) Run(ctx context.Context) {
	var open sync.WaitGroup
	defer open.Wait()
	if s.o.Interval > fullInterval {
		open.Go(func() { s.rounds(ctx, fullInterval, s.full, s.Read) })
	}
	s.rounds(ctx, s.o.Interval, s.readable, func(ctx context.Context, in *instance.Instance) {
		s.Read(ctx, in)
		s.check(ctx, in)
	})
}

// rounds calls read for each engine of a list once in each interval, until ctx ends.
func (s *Scraper) rounds(ctx context.Context, interval time.Duration, next func() []*instance.Instance, read func(context.Context, *instance.Instance)) {
	var open errgroup.Group
	open.SetLimit(maxConcurrent)
	defer func() { _ = open.Wait() }() // read returns no error
	for {
		began := time.Now()
		list := next()
		for i, in := range list {
			// Each engine is read at a random time in its part of the interval.
			part := interval / time.Duration(len(list))
			if !sleep.Until(ctx, began.Add(time.Duration(i)*part+rand.N(part+1))) {
				return
			}
			open.Go(func() error {
				read(ctx, in)
				return nil
			})
		}
		if !sleep.Until(ctx, began.Add(interval)) {
			return
		}
	}
}

// readable returns the instances to read: those that requests may be sent to, and verified members on which
// requests still run. An engine in both roles is read once, as a decode instance unless it is kept in
// prefill.
func (s *Scraper) readable() (list []*instance.Instance) {
	s.forget()
	snap, seen := s.o.Members(), map[string]bool{}
	for _, some := range [][]*instance.Instance{snap.Usable(instance.Decode), snap.Usable(instance.Prefill), snap.All()} {
		for _, in := range some {
			if !seen[in.Address] && (in.Usable() || s.finishing(in)) {
				seen[in.Address] = true
				list = append(list, in)
			}
		}
	}
	return list
}

// finishing reports whether requests run on an instance that may not be picked, such as a drained one.
func (s *Scraper) finishing(in *instance.Instance) bool {
	return in.Verified && (in.View == "" || in.View == instance.Orphan) && s.o.InFlight(in.Key) > 0
}

// full returns decode instances that may be full: requests waited at the last reading, or more are in
// flight than were ever reported. Those that were read longest ago are first.
func (s *Scraper) full() []*instance.Instance {
	snap := s.o.Members()
	s.mu.Lock()
	defer s.mu.Unlock()
	var list []*instance.Instance
	for k, r := range s.known {
		if in, member := snap.Lookup(k); member && k.Role == instance.Decode && (r.queued || s.o.InFlight(k) > r.most*5/4+1) {
			list = append(list, in)
		}
	}
	slices.SortFunc(list, func(a, b *instance.Instance) int { return s.known[a.Key].at.Compare(s.known[b.Key].at) })
	return list[:min(len(list), mostFull)]
}

// check bounds Options.Check: an engine that hangs must not delay the readings of others.
func (s *Scraper) check(ctx context.Context, in *instance.Instance) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	s.o.Check(ctx, in)
}

// Read reads the metrics of an engine once, in addition to the readings of Run. If Interval is 0, it
// does nothing: without Run no reading becomes stale.
func (s *Scraper) Read(ctx context.Context, in *instance.Instance) {
	if s.o.Interval <= 0 {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	ranks, err := s.o.Reader.Load(ctx, in)
	if err != nil {
		return // the last reading stays in use until it is stale
	}
	now := time.Now()
	report := engine(now, in, ranks)
	s.mu.Lock()
	s.known[in.Key] = reading{
		at: now, queued: report.Queue() > 0,
		most: max(s.known[in.Key].most, report.All.Running+report.All.Waiting),
	}
	s.mu.Unlock()
	s.o.Observe(in.Key, ranks)
	if len(ranks) == 0 {
		report = nil // also if an earlier process at the address had one
	}
	s.o.Sink(in.Key, report)
}

// forget drops readings of engines that have left, and stale ones. A reading of an engine in its other role
// stays in use.
func (s *Scraper) forget() {
	snap := s.o.Members()
	s.mu.Lock()
	defer s.mu.Unlock()
	for k, r := range s.known {
		if _, member := snap.Lookup(k); !member || time.Since(r.at) >= stale*s.o.Interval+timeout {
			delete(s.known, k)
			if _, read := s.known[k.Other()]; read {
				continue
			}
			s.o.Sink(k, nil)
			s.o.Observe(k, nil)
		}
	}
}

// engine converts the load of the ranks for policies.
func engine(at time.Time, in *instance.Instance, ranks []vllm.RankLoad) *policy.Engine {
	e := &policy.Engine{At: at, Ranks: make([]policy.Rank, len(ranks))}
	own := make(map[int]int, len(ranks)) // by the engine's numbers
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
			Running: r.Running, Waiting: r.Waiting, Starved: r.Starved, Deferred: r.Deferred, Fetching: r.Fetching, Fetched: r.Fetched,
		}
		e.Ranks[i], e.StartedAt = one, r.StartedAt
		e.All.Capacity += one.Capacity
		e.All.Usage += one.Usage / float64(len(ranks))
		e.All.Running += one.Running
		e.All.Waiting += one.Waiting
		e.All.Starved += one.Starved
		e.All.Deferred += one.Deferred
		e.All.Fetching += one.Fetching
		e.All.Fetched += one.Fetched
	}
	return e
}
