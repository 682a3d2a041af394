// Package catalog keeps the lists of models of instances up to date. An agent updates the record of its
// instance. Instances added by the command line, pdctl add, the admin routes or curl have no agent, and a
// record has no space for thousands of LoRA adapters. Therefore the engines are read again:
//
//   - at intervals,
//   - when a request names a model that no instance lists (Find),
//   - when an engine answers 404 for a model that it is known to serve (Confirm),
//   - after a request that loads or unloads an adapter on all of them (Refresh).
//
// The lists go to the owner of the membership, which publishes them in the next snapshot.
package catalog

import (
	"cmp"
	"context"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/pdmesh/pdmesh/internal/cli/sleep"
	"github.com/pdmesh/pdmesh/internal/instance"
)

const (
	// maxReads bounds the concurrent reads.
	maxReads = 16
	// negativeTTL is the time for which a model counts as unknown after a round that has not found it.
	negativeTTL = 5 * time.Second
	// maxNames bounds the unknown models that are remembered. While there are that many, requests for other
	// models are refused without reading.
	maxNames = 1024
	// maxNameBytes bounds the length of a model name for which engines are read.
	maxNameBytes = 4096
	// minInterval is the mean time between two reads of an engine, unless they use too much CPU.
	minInterval = 30 * time.Second
	// minPause is the shortest time from one round of reads to the next.
	minPause = time.Second
	// Reads at intervals, and rounds, each use at most 1/share of a core, by the estimates readCost and
	// modelCost.
	share     = 20
	readCost  = 250 * time.Microsecond
	modelCost = 4 * time.Microsecond
	// earlyAfter is the time for which a request waits for the end of a round although an instance that
	// serves the model is known. One of the other role may still be missing.
	earlyAfter = 250 * time.Millisecond
	// tick is the shortest time between two checks for due reads.
	tick = 200 * time.Millisecond
	// publishLimit bounds the wait for a snapshot with the lists that were read.
	publishLimit = 2 * time.Second
	// brokenAfter is the time for which an engine answers 404 for a model that it lists before it counts as
	// broken. Until then, the adapter may have been unloaded and loaded again.
	brokenAfter = 2 * time.Second
)

// Options configure a Catalog. Members, Read, Observe and Serves are required.
type Options struct {
	Members func() *instance.Snapshot
	// Read reads the models of one engine.
	Read func(context.Context, *instance.Instance) (instance.Facts, error)
	// Observe receives the result of a read; a later snapshot has it.
	Observe func(context.Context, *instance.Instance, instance.Facts)
	// Serves reports whether an instance of the newest snapshot can serve a model.
	Serves func(model string) bool
	// Available reports whether an instance is not ejected; nil: all are available. Ejected
	// ones are not read for a request that waits.
	Available func(instance.Key) bool
	Timeout   time.Duration // of one read; default 3 s
}

// Catalog reads lists of models. It is safe for concurrent use. A nil Catalog reads nothing.
type Catalog struct {
	o     Options
	ctx   context.Context //nolint:containedctx // ends with Run, for reads that several requests wait for
	end   context.CancelFunc
	slots chan struct{}

	rounds chan struct{} // full while a round runs; guards next
	next   time.Time     // earliest start of the next round

	mu       sync.Mutex // guards everything below
	ended    bool
	work     sync.WaitGroup
	waiting  *round              // the next round, which has not begun
	names    map[string]*round   // the last round that looked for each unknown model
	confirms map[string]*confirm // by address
	last     []string            // the last list that was read; equal lists share their memory
}

// round is one read of all engines.
type round struct {
	late  chan struct{}   // closed earlyAfter its start
	done  chan struct{}   // closed at its end
	names map[string]bool // models looked for; true if an engine, but no snapshot, lists it. Final after done
	ended time.Time       // zero until done; guarded by Catalog.mu
}

// New returns a Catalog that reads nothing at intervals until Run is called.
func New(o Options) *Catalog {
	o.Timeout = cmp.Or(o.Timeout, 3*time.Second)
	if o.Available == nil {
		o.Available = func(instance.Key) bool { return true }
	}
	c := &Catalog{o: o, slots: make(chan struct{}, maxReads), rounds: make(chan struct{}, 1), names: map[string]*round{}, confirms: map[string]*confirm{}}
	c.ctx, c.end = context.WithCancel(context.Background())
	return c
}

// engine has the instances of one address; both roles are one engine.
type engine []*instance.Instance

// engines groups instances by address.
func engines(list []*instance.Instance) (out []engine) {
	at := make(map[string]int, len(list))
	for _, in := range list {
		i, ok := at[in.Address]
		if !ok {
			i = len(out)
			at[in.Address] = i
			out = append(out, nil)
		}
		out[i] = append(out[i], in)
	}
	return out
}

// usable returns the engines that requests may go to.
func (c *Catalog) usable() []engine {
	snap := c.o.Members()
	all := slices.Concat(snap.Usable(instance.Decode), snap.Usable(instance.Prefill))
	available := slices.DeleteFunc(slices.Clone(all), func(in *instance.Instance) bool { return !c.o.Available(in.Key) })
	if len(available) > 0 {
		all = available
	}
	return engines(all)
}

// outdated returns the engines whose records may not list the models that they serve now.
func outdated(snap *instance.Snapshot) []engine {
	var list []*instance.Instance
	for _, in := range slices.Concat(snap.Usable(instance.Decode), snap.Usable(instance.Prefill)) {
		if !in.Maintained() || in.View == instance.Orphan || in.ModelsRead || in.Record.ModelsTruncated {
			list = append(list, in)
		}
	}
	return engines(list)
}

// incomplete reports whether the known list lacks models that the engine serves.
func (e engine) incomplete() bool {
	return slices.ContainsFunc(e, func(in *instance.Instance) bool { return in.Record.ModelsTruncated && !in.ModelsRead })
}

// due is the time of an engine's next read.
type due struct {
	at         time.Time
	incomplete bool // see engine.incomplete
}

// Run reads engines at intervals until ctx ends, and then waits for all reads.
func (c *Catalog) Run(ctx context.Context) {
	defer func() {
		c.mu.Lock()
		c.ended = true
		c.mu.Unlock()
		c.end()
		c.work.Wait()
	}()
	reads := map[string]due{} // by address
	for {
		snap, now := c.o.Members(), time.Now()
		list := outdated(snap)
		interval := c.interval(list)
		was, next := reads, now.Add(interval)
		reads = make(map[string]due, len(list))
		for _, e := range list {
			one, known := was[e[0].Address]
			incomplete := e.incomplete()
			switch {
			case incomplete && !one.incomplete:
				one.at = now
			case !known:
				one.at = now.Add(rand.N(interval)) // its models were read when it was added
			}
			if one.incomplete = incomplete; !one.at.After(now) {
				c.work.Go(func() { c.read(c.ctx, e) })
				if one.at = now.Add(interval/2 + rand.N(interval)); incomplete {
					one.at = now.Add(negativeTTL) // in case this read fails
				}
			}
			reads[e[0].Address] = one
			if one.at.Before(next) {
				next = one.at
			}
		}
		if !sleep.Until(ctx, now.Add(tick)) {
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(time.Until(next)):
		case <-snap.Changed():
		}
	}
}

// interval returns the mean time between two reads of one of these engines.
func (c *Catalog) interval(list []engine) time.Duration {
	var d time.Duration
	for _, e := range list {
		d += cost(len(e[0].Record.Models))
	}
	return max(minInterval, share*d)
}

// cost estimates the CPU that reading a list of models uses.
func cost(models int) time.Duration { return readCost + time.Duration(models)*modelCost }

// read is the result of reading one engine.
type read struct {
	of    engine
	facts instance.Facts
	err   error
}

// read reads one engine and passes on its list.
func (c *Catalog) read(ctx context.Context, e engine) read {
	r := read{of: e}
	select {
	case <-ctx.Done():
		r.err = ctx.Err()
		return r
	case c.slots <- struct{}{}:
	}
	defer func() { <-c.slots }()
	ctx, cancel := context.WithTimeout(ctx, c.o.Timeout)
	defer cancel()
	if r.facts, r.err = c.o.Read(ctx, e[0]); r.err != nil {
		return r
	}
	c.mu.Lock()
	if slices.Equal(c.last, r.facts.Models) {
		r.facts.Models = c.last
	}
	c.last = r.facts.Models
	c.mu.Unlock()
	for _, in := range e {
		c.o.Observe(ctx, in, r.facts)
	}
	return r
}

// readAll reads engines, and returns once a snapshot has their answers.
func (c *Catalog) readAll(ctx context.Context, list []engine) []read {
	reads := make([]read, len(list))
	var open sync.WaitGroup
	for i, e := range list {
		open.Go(func() { reads[i] = c.read(ctx, e) })
	}
	open.Wait()
	c.awaitPublished(ctx, reads)
	return reads
}

// awaitPublished waits until a snapshot has the results, at most publishLimit.
func (c *Catalog) awaitPublished(ctx context.Context, reads []read) {
	ctx, cancel := context.WithTimeout(ctx, publishLimit)
	defer cancel()
	instance.Await(ctx, c.o.Members, func(snap *instance.Snapshot) bool {
		return !slices.ContainsFunc(reads, func(r read) bool { return !published(snap, &r) })
	})
}

func published(snap *instance.Snapshot, r *read) bool {
	if r.err != nil {
		return true
	}
	for _, was := range r.of {
		in, ok := snap.Lookup(was.Key)
		switch {
		case !ok, in.Incarnation() != was.Incarnation(), in.Maintained() && in.ModRevision != was.ModRevision:
		case !slices.Equal(in.Record.Models, r.facts.Models):
			return false
		}
	}
	return true
}

// Refresh reads the engines of instances now, and returns once a snapshot has their answers, or ctx ends.
func (c *Catalog) Refresh(ctx context.Context, list []*instance.Instance) {
	if c != nil {
		c.readAll(ctx, engines(list))
	}
}
