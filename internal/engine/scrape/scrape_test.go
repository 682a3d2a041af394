package scrape_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/pdmesh/pdmesh/internal/cli/background"
	"github.com/pdmesh/pdmesh/internal/engine/scrape"
	"github.com/pdmesh/pdmesh/internal/engine/vllm"
	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/internal/sched/policy"
)

// engines answers with the number of waiting requests of each engine.
type engines struct {
	mu               sync.Mutex
	members          *instance.Snapshot
	silent           map[string]bool
	asked            map[string]int
	open, most       int
	known            map[instance.Key]*policy.Engine
	takes            time.Duration
	earliest, latest time.Time
	first            int // first rank of the group
	observed         map[instance.Key][]vllm.RankLoad
	checked          map[string]int
	full             map[string]bool // engines in which requests wait for capacity
	fetched          map[string]bool // engines in which requests wait whose KV cache has arrived
	sent             map[string]float64
	bare             bool // the engines report no load, as with --disable-log-stats
}

func (e *engines) Load(ctx context.Context, in *instance.Instance) ([]vllm.RankLoad, error) {
	e.mu.Lock()
	e.open++
	e.most = max(e.most, e.open)
	e.asked[in.Address]++
	silent, deferred := e.silent[in.Address], 2.0
	if e.full[in.Address] {
		deferred = 0
	}
	fetched := 0.0
	if e.fetched[in.Address] {
		fetched = 1
	}
	if e.latest = time.Now(); e.earliest.IsZero() {
		e.earliest = e.latest
	}
	bare := e.bare
	e.mu.Unlock()
	defer func() {
		e.mu.Lock()
		e.open--
		e.mu.Unlock()
	}()
	if silent {
		<-ctx.Done()
		return nil, errors.New("silent")
	}
	time.Sleep(e.takes)
	if bare {
		return nil, nil
	}
	return []vllm.RankLoad{
		{Rank: e.first, StartedAt: time.Unix(1, 0), Blocks: 100, Block: 16, Usage: 0.5, Running: 1, Waiting: 2, Deferred: deferred, Fetched: fetched, Starved: 1},
		{Rank: e.first + 1, StartedAt: time.Unix(1, 0), Blocks: 50, Block: 16, Usage: 1, Running: 3, Waiting: 4, Deferred: 2 * deferred, Fetching: 2},
	}, nil
}

func (e *engines) sink(k instance.Key, is *policy.Engine) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.known[k] = is
}

func (e *engines) inFlight(k instance.Key) float64 {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.sent[k.Address]
}

func (e *engines) check(_ context.Context, in *instance.Instance) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.checked[in.Address]++
}

func (e *engines) observe(k instance.Key, ranks []vllm.RankLoad) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.observed[k] = ranks
}

func fleet(n int) *instance.Snapshot {
	var all []*instance.Instance
	for i := range n {
		all = append(all, &instance.Instance{
			Key: instance.Key{Role: instance.Decode, Address: fmt.Sprintf("10.0.0.%d:1", i)}, Verified: true,
			Record: instance.Record{State: instance.Ready, Models: []string{"m"}},
		})
	}
	return instance.NewSnapshot(1, all)
}

// newEngines returns engines that answer.
func newEngines() *engines {
	return &engines{
		silent: map[string]bool{}, asked: map[string]int{}, known: map[instance.Key]*policy.Engine{},
		observed: map[instance.Key][]vllm.RankLoad{}, checked: map[string]int{},
	}
}

// run runs a Scraper with an interval of ten seconds in virtual time, until f returns.
func (e *engines) run(t *testing.T, members *instance.Snapshot, f func(*testing.T, *scrape.Scraper)) {
	t.Helper()
	e.members = members
	synctest.Test(t, func(t *testing.T) {
		s := scrape.New(scrape.Options{
			Members: func() *instance.Snapshot {
				e.mu.Lock()
				defer e.mu.Unlock()
				return e.members
			},
			Reader: e, Sink: e.sink, Observe: e.observe, Check: e.check, InFlight: e.inFlight, Interval: 10 * time.Second,
		})
		stop := background.Start(t.Context(), s.Run)
		f(t, s)
		stop()
	})
}

// lockAfter locks the engines after some time.
func (e *engines) lockAfter(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
	e.mu.Lock()
}

// Every engine is read once per interval, spread over it and with few concurrent reads.
// Its last report is dropped once it has been silent for some intervals, or has left.
func TestScrape(t *testing.T) {
	t.Parallel()
	e, members := newEngines(), fleet(64)
	e.takes = time.Microsecond
	e.run(t, members, func(t *testing.T, _ *scrape.Scraper) {
		e.lockAfter(10*time.Second - time.Microsecond)
		for _, in := range members.All() {
			assert.Equal(t, 1, e.asked[in.Address],
				"%s was asked %d times in one interval", in.Address, e.asked[in.Address])
			assert.Equal(t, 1, e.checked[in.Address],
				"%s was checked %d times in one interval", in.Address, e.checked[in.Address])
		}
		d := e.latest.Sub(e.earliest)
		assert.GreaterOrEqual(t, d, 8*time.Second, "all within %s of the interval", d)
		one := members.All()[0].Key
		got := e.known[one]
		if want := (policy.Rank{Capacity: 2400, Usage: 0.75, Running: 4, Waiting: 6, Starved: 1, Deferred: 6, Fetching: 2}); got == nil || got.All != want || len(got.Ranks) != 2 || got.Ranks[1].Rank != 1 || got.Ranks[1].Capacity != 800 {
			t.Errorf("known of it: %+v", got)
		}
		if got := e.observed[one]; len(got) != 2 || got[1].Running != 3 {
			t.Errorf("observed: %+v", got)
		}
		for _, in := range members.All() {
			e.silent[in.Address] = true
		}
		e.mu.Unlock()
		e.lockAfter(time.Minute)
		assert.True(t, e.known[one] == nil, "what a silent engine said a minute ago is believed")
		assert.True(t, e.observed[one] == nil, "the core of a silent engine counts as observable")
		assert.LessOrEqual(t, e.most, 8, "%d questions at once", e.most)
		clear(e.silent)
		e.mu.Unlock()
		e.lockAfter(20 * time.Second)
		assert.True(t, e.known[one] != nil, "the engine answers again")
		e.bare = true
		e.mu.Unlock()
		e.lockAfter(20 * time.Second)
		assert.True(t, e.known[one] == nil, "the report of an engine that restarted without metrics of its load is used")
		e.bare = false
		e.mu.Unlock()
		e.lockAfter(20 * time.Second)
		e.members = fleet(0)
		e.mu.Unlock()
		e.lockAfter(20 * time.Second)
		for k, is := range e.known {
			assert.True(t, is == nil, "%s has left, and is believed", k)
		}
		e.mu.Unlock()
	})
}

// Ranks 2 and 3 of a group, on its second server, are the ranks 0 and 1 in requests to that server.
func TestScrapeSecondServerOfAGroup(t *testing.T) {
	t.Parallel()
	e, members := newEngines(), fleet(1)
	e.first = 2
	one := members.All()[0]
	one.Record.DPSize = 2
	e.run(t, members, func(t *testing.T, _ *scrape.Scraper) {
		e.lockAfter(10 * time.Second)
		got := e.known[one.Key]
		e.mu.Unlock()
		if got.Rank(0) == nil || got.Rank(0).All.Running != 1 || got.Rank(0).StartedAt.Unix() != 1 || got.Rank(1) == nil || got.Rank(1).All.Running != 3 {
			t.Errorf("known of it: %+v", got)
		}
	})
}

// A decode engine with waiting requests is read every second until none wait, a few at a time.
func TestScrape_FullEngine(t *testing.T) {
	t.Parallel()
	e := newEngines()
	e.full = map[string]bool{"10.0.0.0:1": true, "10.0.1.0:1": true}
	prefill := &instance.Instance{Key: instance.Key{Role: instance.Prefill, Address: "10.0.1.0:1"}, Verified: true, Record: instance.Record{State: instance.Ready}}
	e.run(t, instance.NewSnapshot(1, append(fleet(20).All(), prefill)), func(t *testing.T, _ *scrape.Scraper) {
		// within returns the number of reads of some engines in ten seconds, except the first of each.
		within := func(addresses ...string) (n int) {
			e.mu.Lock()
			clear(e.asked)
			e.mu.Unlock()
			e.lockAfter(10 * time.Second)
			defer e.mu.Unlock()
			for _, a := range addresses {
				n += e.asked[a] - 1
			}
			return n
		}
		time.Sleep(10 * time.Second)
		n := within("10.0.0.0:1")
		assert.True(t, n >= 9 && n <= 11, "a full engine was read %d more times", n)
		e.mu.Lock()
		e.fetched = map[string]bool{"10.0.0.2:1": true}
		e.sent = map[string]float64{"10.0.0.1:1": 13, "10.0.0.3:1": 14} // 10 are reported
		e.mu.Unlock()
		time.Sleep(10 * time.Second)
		n = within("10.0.0.2:1")
		assert.True(t, n >= 9 && n <= 11, "an engine in which requests wait for a place was read %d more times", n)
		n = within("10.0.0.3:1")
		assert.True(t, n >= 9 && n <= 11, "an engine with more requests than reported was read %d more times", n)
		n = within("10.0.0.1:1", "10.0.1.0:1")
		assert.Equal(t, 0, n, "an engine without a queue and one of prefill were read %d more times", n)
		e.mu.Lock()
		var all []string
		for i := range 20 {
			e.full[fmt.Sprintf("10.0.0.%d:1", i)] = true
			all = append(all, fmt.Sprintf("10.0.0.%d:1", i))
		}
		e.mu.Unlock()
		time.Sleep(10 * time.Second)
		n = within(all...)
		assert.True(t, n >= 70 && n <= 90, "20 full engines were read %d more times", n)
		e.mu.Lock()
		for _, a := range all {
			assert.GreaterOrEqual(t, e.asked[a], 3, "%s was read %d times", a, e.asked[a])
		}
		clear(e.full)
		clear(e.fetched)
		clear(e.sent)
		e.mu.Unlock()
		time.Sleep(10 * time.Second)
		n = within(all...)
		assert.Equal(t, 0, n, "engines whose queues are empty again were read %d more times", n)
	})
}

// An engine in both roles is read once per interval, also if it serves in one of them only.
func TestScrape_BothRoles(t *testing.T) {
	t.Parallel()
	for _, only := range []instance.Role{"", instance.Prefill, instance.Decode} {
		decode := fleet(1).All()[0]
		other := *decode
		other.Role = instance.Prefill
		both := []*instance.Instance{&other, decode}
		for _, in := range both {
			if only != "" && in.Role != only {
				in.Intent, in.OnlyRole = instance.Drain, only
			}
		}
		e := newEngines()
		e.run(t, instance.NewSnapshot(1, both), func(t *testing.T, _ *scrape.Scraper) {
			e.lockAfter(10*time.Second - time.Microsecond)
			defer e.mu.Unlock()
			n := e.asked[decode.Address]
			assert.Equal(t, 1, n, "kept in role %q: read %d times in one interval", only, n)
		})
	}
}

// The report of an engine that was read in one role is kept while it is read in the other.
func TestScrape_ReadInOtherRole(t *testing.T) {
	t.Parallel()
	decode := fleet(1).All()[0]
	prefill := *decode
	prefill.Role = instance.Prefill
	e := newEngines()
	e.run(t, instance.NewSnapshot(1, []*instance.Instance{&prefill, decode}), func(t *testing.T, s *scrape.Scraper) {
		s.Read(context.Background(), &prefill)
		e.lockAfter(time.Minute)
		defer e.mu.Unlock()
		assert.True(t, e.known[prefill.Key] != nil && e.observed[prefill.Key] != nil, "the last reading was discarded")
		e.silent[decode.Address] = true
		e.mu.Unlock()
		e.lockAfter(time.Minute)
		assert.True(t, e.known[decode.Key] == nil && e.observed[decode.Key] == nil,
			"what a silent engine reported a minute ago is used")
	})
}

// A drained instance is read until its requests have ended, because their time limits depend on its progress.
func TestScrape_Drained(t *testing.T) {
	t.Parallel()
	list := fleet(2).All()
	for _, in := range list {
		in.Intent = instance.Drain
	}
	e := newEngines()
	e.sent = map[string]float64{list[0].Address: 1}
	e.run(t, instance.NewSnapshot(1, list), func(t *testing.T, _ *scrape.Scraper) {
		e.lockAfter(time.Minute)
		if e.observed[list[0].Key] == nil || e.asked[list[1].Address] != 0 {
			t.Errorf("read %d times with a request, %d times without", e.asked[list[0].Address], e.asked[list[1].Address])
		}
		e.sent = nil
		e.mu.Unlock()
		e.lockAfter(time.Minute)
		defer e.mu.Unlock()
		assert.True(t, e.observed[list[0].Key] == nil, "read although its last request has ended")
	})
}

// A Scraper without an interval reads nothing, because no later read would replace the first one.
func TestScraper_ReadWithoutInterval(t *testing.T) {
	t.Parallel()
	e, one := newEngines(), fleet(1).All()[0]
	scrape.New(scrape.Options{Reader: e, Sink: e.sink, Observe: e.observe}).Read(t.Context(), one)
	assert.True(t, e.asked[one.Address] == 0 && e.known[one.Key] == nil && e.observed[one.Key] == nil,
		"read %d times; its load is %+v", e.asked[one.Address], e.known[one.Key])
}
