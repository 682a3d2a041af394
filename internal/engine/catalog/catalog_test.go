package catalog_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pdmesh/pdmesh/internal/cli/background"
	"github.com/pdmesh/pdmesh/internal/engine/catalog"
	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/sim/testkit/leak"
)

func TestMain(m *testing.M) { leak.Main(m) }

// fleet is a membership with its engines.
type fleet struct {
	snapshot atomic.Pointer[instance.Snapshot]

	mu       sync.Mutex // guards the fields below
	serves   map[string][]string
	silent   map[string]bool // by address: reads wait for their deadline
	reads    map[string]int
	open     int
	mostOpen int
}

// newFleet returns n decode instances from the command line that serve "base".
func newFleet(n int) *fleet {
	f := &fleet{serves: map[string][]string{}, silent: map[string]bool{}, reads: map[string]int{}}
	var all []*instance.Instance
	for i := range n {
		in := &instance.Instance{Key: key(i), Verified: true, ModRevision: 1, CreateRevision: 1, Record: instance.Record{State: instance.Ready, Source: "flags", Models: []string{"base"}}}
		f.serves[in.Address] = in.Record.Models
		all = append(all, in)
	}
	f.snapshot.Store(instance.NewSnapshot(1, all))
	return f
}

func key(i int) instance.Key {
	return instance.Key{Role: instance.Decode, Address: fmt.Sprintf("10.0.%d.%d:8000", i/250, i%250)}
}

func (f *fleet) member(i int) *instance.Instance {
	in, _ := f.snapshot.Load().Lookup(key(i))
	return in
}

// change replaces one instance in a new snapshot.
func (f *fleet) change(k instance.Key, change func(*instance.Instance)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	old := f.snapshot.Load()
	all := slices.Clone(old.All())
	for i, in := range all {
		if in.Key == k {
			next := *in
			change(&next)
			all[i] = &next
		}
	}
	f.snapshot.Store(instance.NewSnapshot(old.Revision+1, all))
	old.Supersede()
}

func (f *fleet) load(i int, models ...string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.serves[key(i).Address] = models
}

func (f *fleet) total() (n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, one := range f.reads {
		n += one
	}
	return n
}

// busiest returns the most reads of one engine, and the most concurrent reads.
func (f *fleet) busiest() (reads, atATime int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, n := range f.reads {
		reads = max(reads, n)
	}
	return reads, f.mostOpen
}

func (f *fleet) count(k instance.Key) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.reads[k.Address]
}

func (f *fleet) hang(i int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.silent[key(i).Address] = true
}

func (f *fleet) read(ctx context.Context, in *instance.Instance) (instance.Facts, error) {
	f.mu.Lock()
	f.reads[in.Address]++
	f.open++
	f.mostOpen = max(f.mostOpen, f.open)
	silent := f.silent[in.Address]
	f.mu.Unlock()
	defer func() {
		f.mu.Lock()
		f.open--
		f.mu.Unlock()
	}()
	limit := time.NewTimer(2 * time.Millisecond)
	defer limit.Stop()
	if silent {
		<-ctx.Done()
		return instance.Facts{}, ctx.Err()
	}
	<-limit.C
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.serves[in.Address] == nil {
		return instance.Facts{}, errors.New("connection refused")
	}
	return instance.Facts{Models: slices.Clone(f.serves[in.Address])}, nil
}

func (f *fleet) observe(_ context.Context, in *instance.Instance, facts instance.Facts) {
	f.change(in.Key, func(in *instance.Instance) {
		in.Record.Models, in.ModelsRead = facts.Models, true
	})
}

func (f *fleet) knows(model string) bool {
	return slices.ContainsFunc(f.snapshot.Load().All(), func(in *instance.Instance) bool { return in.ServesModel(model) })
}

// catalog returns a Catalog without periodic reads.
func (f *fleet) catalog() *catalog.Catalog {
	return catalog.New(catalog.Options{Members: f.snapshot.Load, Read: f.read, Observe: f.observe, Serves: f.knows})
}

// start runs a catalog until the end of the test.
func (f *fleet) start(t *testing.T) *catalog.Catalog {
	c := f.catalog()
	t.Cleanup(background.Start(t.Context(), c.Run))
	synctest.Wait()
	return c
}

// For a model that no instance lists, engines are read at most once in 5 s, however many requests name it.
func TestFind_OncePerModel(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(3)
		c := f.catalog()
		var all sync.WaitGroup
		for range 50 {
			all.Go(func() {
				assert.False(t, c.Find(t.Context(), "late"), "found")
			})
		}
		all.Wait()
		assert.Equal(t, 3, f.total(), "reads of 3 engines")
		f.load(1, "base", "late")
		pass(4 * time.Second)
		assert.False(t, c.Find(t.Context(), "late"), "found within 5 s")
		assert.Equal(t, 3, f.total(), "found within 5 s")
		pass(time.Second)
		require.True(t, c.Find(t.Context(), "late"), "not found after 5 s")
		assert.Equal(t, 6, f.total(), "not found after 5 s")
		assert.False(t, c.Find(t.Context(), "other"), "another name")
		assert.Equal(t, 9, f.total(), "another name")
	})
}

// The same applies if only instances list the model that cannot serve it, such as prefill instances.
func TestFind_NotServed(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(3)
		f.load(1, "base", "late")
		c := catalog.New(catalog.Options{Members: f.snapshot.Load, Read: f.read, Observe: f.observe, Serves: func(string) bool { return false }})
		for range 5 {
			assert.False(t, c.Find(t.Context(), "late"), "found")
		}
		assert.Equal(t, 3, f.total(), "reads of 3 engines")
	})
}

// Requests for many unknown models share rounds of reads, at a bounded rate.
func TestFind_ManyNames(t *testing.T) {
	t.Parallel()
	for instances, most := range map[int]int{4: 11, 400: 6} { // rounds in 10 s
		t.Run(fmt.Sprint(instances), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				f := newFleet(instances)
				c := f.start(t)
				ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
				defer cancel()
				var all sync.WaitGroup
				for i := range 20 {
					all.Go(func() {
						for n := 0; ctx.Err() == nil; n++ {
							assert.False(t, c.Find(ctx, fmt.Sprintf("none-%d-%d", i, n)), "found")
							pass(time.Millisecond) // duration of a request
						}
					})
				}
				all.Wait()
				rounds, atATime := f.busiest()
				if rounds > most+1 || rounds < 2 || atATime > 16 { // one read may be due in any case
					t.Errorf("%d rounds, %d reads at a time", rounds, atATime)
				}
			})
		})
	}
}

// A request waits no longer than its client, and a hung engine delays it by at most the timeout of one read.
func TestFind_HungEngine(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(3)
		f.hang(0)
		f.load(2, "base", "late")
		c := f.start(t)
		began := time.Now()
		assert.True(t, c.Find(t.Context(), "late") && time.Since(began) <= time.Second,
			"found after %s", time.Since(began))
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		began = time.Now()
		assert.False(t, c.Find(ctx, "none"), "waited for a client of 100 ms")
		assert.Equal(t, 100*time.Millisecond, time.Since(began), "waited for a client of 100 ms")
		began = time.Now()
		assert.True(t, !c.Find(t.Context(), "none") && time.Since(began) <= 7*time.Second,
			"waited %s", time.Since(began))
	})
}

// Engines whose records no agent maintains are read periodically, a few at a time.
func TestRun_Interval(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(1000)
		agent := f.member(7)
		f.change(agent.Key, func(in *instance.Instance) { in.Record.Source, in.Lease = instance.SourceAgent, 1 })
		f.start(t)
		f.load(3, "base", "late")
		f.load(4) // its answers are useless
		pass(46 * time.Second)
		assert.True(t, f.knows("late"), "not known after 1.5 intervals")
		f.load(3, "base")
		pass(46 * time.Second)
		assert.False(t, f.knows("late"), "still known after 1.5 intervals")
		n := f.count(agent.Key)
		assert.Equal(t, 0, n, "an agent's instance was read %d times", n)
		_, atATime := f.busiest()
		n = f.total()
		assert.True(t, n >= 2000 && n <= 5000 && atATime <= 16, "%d reads in three intervals, %d at a time", n, atATime)
		assert.Len(t, f.member(4).Record.Models, 1, "a failed read has changed the list to")
	})
}

// A record with a truncated list of models is completed at once.
func TestRun_Truncated(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(2)
		f.load(0, "base", "a", "b")
		f.start(t)
		f.change(key(0), func(in *instance.Instance) {
			in.Record.Source, in.Lease, in.Record.ModelsTruncated = instance.SourceAgent, 1, true
		})
		pass(time.Second)
		assert.True(t, f.knows("b"), "not known after a second")
	})
}

// Refresh returns once the snapshot has the new lists.
func TestRefresh(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(40)
		c := f.start(t)
		for i := range 40 {
			f.load(i, "base", "late")
		}
		f.hang(9)
		c.Refresh(t.Context(), f.snapshot.Load().Usable(instance.Decode))
		for i := range 40 {
			assert.Equal(t, i != 9, f.member(i).ServesModel("late"), "instance %d", i)
		}
	})
}

// A 404 for a listed model counts against the engine only if it is repeated.
func TestConfirm(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(3)
		for i := range 3 {
			f.load(i, "base", "late")
		}
		c := f.catalog()
		c.Refresh(t.Context(), f.snapshot.Load().Usable(instance.Decode))
		verdict := func(want catalog.Verdict) {
			t.Helper()
			assert.Equal(t, want, c.Confirm(t.Context(), f.member(0), "late"), "verdict")
		}
		verdict(catalog.Unclear) // unloaded and loaded again
		pass(time.Minute)
		verdict(catalog.Unclear)
		pass(3 * time.Second)
		verdict(catalog.Unclear) // no requests in between: a new series
		pass(time.Second)
		verdict(catalog.Unclear)
		pass(time.Second)
		verdict(catalog.Broken)

		f.load(0, "base")
		f.load(1, "base")
		before := f.total()
		var all sync.WaitGroup
		for range 100 {
			all.Go(func() { verdict(catalog.Unloaded) })
		}
		all.Wait()
		n := f.total() - before
		assert.LessOrEqual(t, n, 5, "%d reads for a burst", n)
		pass(2 * time.Second) // the other engines are read, too
		if f.member(0).ServesModel("late") || f.member(1).ServesModel("late") || !f.member(2).ServesModel("late") {
			t.Error("the lists are not up to date")
		}
		f.hang(0)
		verdict(catalog.Unclear)
	})
}

// A nil catalog reads nothing.
func TestNil(t *testing.T) {
	t.Parallel()
	var c *catalog.Catalog
	c.Trigger()
	c.Refresh(t.Context(), nil)
	assert.False(t, c.Find(t.Context(), "m"), "a nil catalog has an opinion")
	assert.Equal(t, catalog.Broken, c.Confirm(t.Context(), nil, "m"), "a nil catalog has an opinion")
}

// pass lets virtual time pass in a synctest bubble.
func pass(d time.Duration) { <-time.NewTimer(d).C }
