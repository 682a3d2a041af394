package forward_test

import (
	"bufio"
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pdmesh/pdmesh/internal/forward"
	"github.com/pdmesh/pdmesh/internal/forward/relay"
	"github.com/pdmesh/pdmesh/internal/health"
	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/sim/fakevllm"
	"github.com/pdmesh/pdmesh/sim/testkit/longform"
)

// abandon sends a streaming request and leaves after some bytes of the
// answer, or before any if after is 0. It reports whether it saw an event.
func abandon(t *testing.T, c *http.Client, url string, q scenario, id string, after int, within time.Duration) (saw bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), within)
	defer cancel()
	resp, err := c.Do(newRequest(ctx, t, http.MethodPost, url+q.path, strings.NewReader(q.body("")), "X-Request-Id", id))
	if err != nil {
		return false
	}
	defer func() { _ = resp.Body.Close() }()
	r := bufio.NewReader(resp.Body)
	for range after {
		if _, err := r.ReadString('\n'); err != nil {
			return saw
		}
		saw = true
	}
	return saw
}

// clientID matches the client's id in the request id that an engine got.
var clientID = regexp.MustCompile(`(?:^|[-_])(r[0-9]+)-`)

// One request in ten is abandoned at a random moment. The engines abort exactly these requests, and no leg,
// goroutine or connection remains.
func TestManyAborts(t *testing.T) {
	r := start(t, fakevllm.NIXL, 2, 2, nil)
	r.rec.ended = make(chan forward.Entry, 1<<20)
	for _, s := range append(r.P, r.D...) {
		script(t, s, fakevllm.Fault{Kind: fakevllm.FaultSlow, TTFT: time.Millisecond, ITL: 300 * time.Microsecond})
	}
	c := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 64}}
	n := longform.Count(500, 1500)
	left := make([]atomic.Bool, n)
	sawSome := make([]atomic.Bool, n)
	warm := runtime.NumGoroutine()
	var next atomic.Int64
	var wg sync.WaitGroup
	for w := range 32 {
		wg.Go(func() {
			rnd := rand.New(rand.NewPCG(1, uint64(w)))
			for i := int(next.Add(1)) - 1; i < n; i = int(next.Add(1)) - 1 {
				id, q := fmt.Sprintf("r%d", i), scenario{apis()[i%3], true}
				if rnd.IntN(10) == 0 {
					left[i].Store(true)
					sawSome[i].Store(abandon(t, c, r.URL, q, id, rnd.IntN(12), time.Duration(rnd.IntN(8)+1)*time.Millisecond))
					continue
				}
				a := do(c, newRequest(t.Context(), t, http.MethodPost, r.URL+q.path, strings.NewReader(q.body("")), "X-Request-Id", id))
				assert.True(t, a.err == nil && q.ends(string(a.body)),
					"%s: cut answer: %v, %d: %.300s", id, a.err, a.status, a.body)
			}
		})
	}
	wg.Wait()
	stayed := 0
	for i := range left {
		if !left[i].Load() {
			stayed++
		}
	}
	// A request whose client left at once may never have arrived.
	eventually(t, "every client that stayed is reported, and nothing is in flight", func() bool {
		r.rec.mu.Lock()
		defer r.rec.mu.Unlock()
		reported := 0
		for _, e := range r.rec.entries {
			if i, err := strconv.Atoi(strings.TrimPrefix(e.RequestID, "r")); err == nil && !left[i].Load() {
				reported++
			}
		}
		busy := int64(0)
		r.sched.Loads.Each(func(_ instance.Key, n int64) { busy += n })
		return reported == stayed && busy == 0
	})
	eventually(t, "the engines are idle", func() bool {
		return total(append(append([]*fakevllm.Server{}, r.P...), r.D...), func(c fakevllm.Counters) int64 { return c.Running + c.Waiting }) == 0
	})
	inEngine := map[string]bool{}
	for _, s := range append(append([]*fakevllm.Server{}, r.P...), r.D...) {
		for _, id := range s.Aborted() {
			if m := clientID.FindStringSubmatch(id); m != nil {
				inEngine[m[1]] = true
			}
		}
	}
	r.rec.mu.Lock() // a request whose client left may be reported only now
	entries := slices.Clone(r.rec.entries)
	r.rec.mu.Unlock()
	clientGone, streaming, missed, ok := 0, 0, 0, int64(0)
	for _, e := range entries {
		i, err := strconv.Atoi(strings.TrimPrefix(e.RequestID, "r"))
		require.NoError(t, err)
		if e.Outcome == relay.OutcomeClientGone {
			clientGone++
			assert.True(t, left[i].Load(), "%s has the outcome client_gone, but the client stayed", e.RequestID)
			if e.TTFT > 0 {
				streaming++
				if !inEngine[e.RequestID] && e.Endpoint != responsesPath { // vLLM generates the id on that route
					missed++
				}
			}
			continue
		}
		if e.Outcome == relay.OutcomeOK {
			ok++
		}
		assert.False(t, inEngine[e.RequestID], "an engine aborted %s, which ended as %s", e.RequestID, e.Outcome)
	}
	// A client that left while the last tokens were on their way had nothing left to abort.
	if late := total(r.D, func(c fakevllm.Counters) int64 { return c.Completed }) - ok; int64(missed) > late {
		t.Errorf("%d left in their stream and were not aborted; only %d answers ended before that was noticed", missed, late)
	}
	t.Logf("%d requests, %d left early, %d of them in the stream; engines aborted %d", n, clientGone, streaming, len(inEngine))
	c.CloseIdleConnections()
	r.up.Close()
	eventually(t, "goroutines are back at the start", func() bool { return runtime.NumGoroutine() <= warm+8 })
	r.checkEngines()
}

// A whole role dies and comes back under load.
func TestWholeRoleDiesAndReturns(t *testing.T) {
	for _, fallback := range []bool{true, false} {
		t.Run(fmt.Sprintf("fallback=%v", fallback), func(t *testing.T) {
			r := start(t, fakevllm.NIXL, 2, 2, func(o *forward.Options) { o.Fallback = fallback })
			r.rec.ended = make(chan forward.Entry, 1<<20)
			ctx, stop := context.WithCancel(t.Context())
			defer stop()
			var ok, unavailable, other atomic.Int64
			var wg sync.WaitGroup
			for i := range 9 {
				q := scenario{apis()[i%3], true}
				wg.Go(func() {
					for ctx.Err() == nil {
						a := r.postScenario(q)
						switch {
						case a.status == http.StatusOK && a.err == nil && q.ends(string(a.body)):
							ok.Add(1)
						case a.status == http.StatusServiceUnavailable && a.header.Get("Retry-After") != "":
							unavailable.Add(1)
						default:
							other.Add(1)
							t.Errorf("%d %v: %s", a.status, a.err, a.body)
						}
					}
				})
			}
			served := func(n int64) {
				t.Helper()
				want := ok.Load() + n
				eventually(t, "requests are served", func() bool { return ok.Load() >= want })
			}
			served(50)
			for _, p := range r.P {
				p.Kill()
			}
			if fallback {
				served(100)
			} else {
				eventually(t, "clients get 503", func() bool { return unavailable.Load() > 20 })
			}
			for _, p := range r.P {
				require.NoError(t, p.Restart(t.Context()))
				p.ForgetRequests()
			}
			for _, p := range r.P {
				eventually(t, "it is readmitted", func() bool { return r.tracker.Available(key(instance.Prefill, p)) })
			}
			before := unavailable.Load()
			served(100)
			stop()
			wg.Wait()
			assert.False(t, fallback && unavailable.Load() > 0,
				"%d clients were turned away in spite of the fallback", unavailable.Load())
			late := unavailable.Load() - before
			assert.True(t, late <= 9, "%d clients were turned away after the return", late)
			t.Logf("%d served, %d turned away; the two that came back got %d and %d prefills",
				ok.Load(), unavailable.Load(), legs(r.P[:1]), legs(r.P[1:]))
			r.checkEngines()
		})
	}
}

// A returning instance does not get its full share at once: its share grows over the slow start.
func TestReturningInstanceStartsSlowly(t *testing.T) {
	const slow = 3 * time.Second
	r := startHealth(t, fakevllm.Plain, 4, 1, nil, func(o *health.Options) { o.SlowStart = slow })
	r.rec.ended = make(chan forward.Entry, 1<<20)
	ctx, stop := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for ctx.Err() == nil {
				r.post("/v1/completions", `{"model":"m","prompt":"x","max_tokens":1}`).check(t, http.StatusOK)
			}
		})
	}
	back := r.P[0]
	k := key(instance.Prefill, back)
	all := func() int64 { return total(r.P, func(c fakevllm.Counters) int64 { return c.Requests }) }
	// share returns the instance's share of the next n prefills: enough that chance does
	// not matter, however long the machine takes.
	share := func(n int64) float64 {
		t.Helper()
		mine, everybody := back.Counters().Requests, all()
		eventually(t, "prefills", func() bool { return all()-everybody >= n })
		mine, everybody = back.Counters().Requests-mine, all()-everybody
		t.Logf("%d of %d prefills", mine, everybody)
		return float64(mine) / float64(everybody)
	}
	// Repeat if the machine was so slow that the slow start was nearly over.
	var first float64
	for try := 0; try == 0 || try < 10 && r.tracker.Share(k) > 0.7; try++ {
		back.Kill()
		eventually(t, "it is ejected", func() bool { return !r.tracker.Available(k) })
		require.NoError(t, back.Restart(t.Context()))
		eventually(t, "it is readmitted", func() bool { return r.tracker.Available(k) })
		first = share(200)
	}
	eventually(t, "the slow start is over", func() bool { return r.tracker.Share(k) == 1 })
	last := share(400)
	stop()
	wg.Wait()
	assert.Less(t, first, last, "it began with %.3f of the requests and ended with %.3f", first, last)
	r.checkEngines()
}
