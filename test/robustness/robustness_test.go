package robustness

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pdmesh/pdmesh/test/harness"
)

func TestMain(m *testing.M) { os.Exit(harness.Main(m, &bin)) }

// number reads a number from the environment.
func number(t *testing.T, name string, otherwise uint64) uint64 {
	t.Helper()
	text := os.Getenv(name)
	if text == "" {
		return otherwise
	}
	n, err := strconv.ParseUint(text, 10, 64)
	require.NoError(t, err, name)
	return n
}

// TestRobustness runs PD_ROBUSTNESS_SEEDS seeds from PD_ROBUSTNESS_FIRST on, for
// PD_ROBUSTNESS_DURATION each.
func TestRobustness(t *testing.T) {
	if os.Getenv("PD_ROBUSTNESS_SEEDS") == "" {
		t.Skip("make robustness runs it")
	}
	duration := 20 * time.Second
	if text := os.Getenv("PD_ROBUSTNESS_DURATION"); text != "" {
		var err error
		if duration, err = time.ParseDuration(text); err != nil || duration < 5*time.Second {
			t.Fatalf("PD_ROBUSTNESS_DURATION is %q: must be 5s or more (%v)", text, err)
		}
	}
	first, n := number(t, "PD_ROBUSTNESS_FIRST", 1), number(t, "PD_ROBUSTNESS_SEEDS", 1)
	requests, budget := 0, 0
	for seed := first; seed < first+n; seed++ {
		ok := t.Run(fmt.Sprintf("seed=%d", seed), func(t *testing.T) {
			h, v := run(t, seed, duration)
			requests, budget = requests+len(h.Requests), budget+v.Excused[budgetExcuse]
		})
		if !ok && os.Getenv("PD_ROBUSTNESS_FAILFAST") != "" {
			return
		}
	}
	// A short run may be one in which most engines fail at the same time.
	assert.False(t, requests >= 10000 && budget > requests/1000,
		"%d of %d requests failed because of the retry budget", budget, requests)
}

// run runs one seed.
func run(t *testing.T, seed uint64, duration time.Duration) (*History, Verdict) {
	plan, begun := NewPlan(seed, duration), time.Now()
	r := build(t, plan, mixed(seed))
	r.h.Start = time.Now()
	background, stop := context.WithCancel(context.WithoutCancel(t.Context()))
	var watching sync.WaitGroup
	watching.Go(func() { r.recordStalls(background) })
	for _, p := range r.proxies {
		watching.Go(func() { r.recordPolls(background, p) })
	}
	l := r.startLoad()
	r.load = l
	r.runLanes(plan)
	healed := time.Now()
	r.converge(healed)
	l.finish(healed)
	finished := time.Now()
	stop()
	watching.Wait()
	r.drainQueues()
	r.settle()
	t.Logf("seed %d: started in %s, faults for %s, last requests after %s more, settled after %s more", seed, r.h.Start.Sub(begun).Round(time.Millisecond),
		healed.Sub(r.h.Start).Round(time.Millisecond), finished.Sub(healed).Round(time.Millisecond), time.Since(finished).Round(time.Millisecond))
	r.readJournals()
	for _, p := range r.f.Running() {
		r.alive(p)
	}
	r.panics()
	return r.h, report(t, r, duration)
}

// runLanes executes the lanes of a plan at the same time.
func (r *rig) runLanes(plan Plan) {
	ctx, cancel := context.WithTimeout(r.t.Context(), plan.For)
	defer cancel()
	var lanes sync.WaitGroup
	var others sync.RWMutex // an exclusive action waits for the others
	for _, lane := range plan.Lanes {
		lanes.Go(func() {
			for _, a := range lane.Actions {
				hold(ctx, time.Until(r.h.Start.Add(a.At)))
				if ctx.Err() != nil {
					return
				}
				if a.Alone {
					others.Lock()
					r.perform(ctx, a)
					others.Unlock()
				} else {
					others.RLock()
					r.perform(ctx, a)
					others.RUnlock()
				}
			}
		})
	}
	lanes.Wait()
}

// recordStalls records the times at which the suite itself got no CPU.
func (r *rig) recordStalls(ctx context.Context) {
	const tick = 50 * time.Millisecond
	last := time.Now()
	for ctx.Err() == nil {
		hold(ctx, tick)
		now := time.Now()
		if late := now.Sub(last) - tick; late > 2*tick {
			r.record(func(h *History) { h.Stalls = append(h.Stalls, Span{last, now}) })
		}
		last = now
	}
}

// recordPolls records the membership that a proxy reports, at each of its revisions and every two seconds.
func (r *rig) recordPolls(ctx context.Context, p *proxy) {
	last, at := int64(-1), time.Time{}
	for ctx.Err() == nil {
		hold(ctx, 200*time.Millisecond)
		if s, err := r.poll(ctx, p); err == nil && (s.Revision != last || s.At.Sub(at) > 2*time.Second) { // a proxy may be away
			last, at = s.Revision, s.At
			r.record(func(h *History) { h.Polls = append(h.Polls, s) })
		}
	}
}

// converge records how long each proxy takes until its snapshot equals etcd, and until it uses every
// instance.
func (r *rig) converge(healed time.Time) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(r.t.Context()), 6*audit)
	defer cancel()
	var group sync.WaitGroup
	for _, p := range r.proxies {
		group.Go(func() {
			err := r.await(ctx, func() error { return r.converged(ctx, p, true) })
			f := Final{Proxy: p.name, Lag: time.Since(healed), Restarts: p.starts, Before: p.before}
			if err == nil {
				err = r.await(ctx, func() error { return r.converged(ctx, p, false) })
				f.Used = time.Since(healed)
			}
			if err != nil {
				f.Differs = err.Error()
			}
			r.record(func(h *History) { h.Final = append(h.Final, f) })
		})
	}
	group.Wait()
}

// settle records the state that remains after the load: it waits for engines that still read cancelled
// requests, and for idle connections to end.
func (r *rig) settle() {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(r.t.Context()), 30*time.Second)
	defer cancel()
	for i := range r.h.Final {
		f := &r.h.Final[i]
		p := r.proxies[slices.IndexFunc(r.proxies, func(p *proxy) bool { return p.name == f.Proxy })]
		_ = r.await(ctx, func() error { // the rules judge the rest
			m, err := r.metrics(p)
			if err != nil {
				return err
			}
			f.InFlight = map[string]int64{}
			for name, v := range m {
				if strings.HasPrefix(name, "pd_instance_in_flight{") && v != 0 {
					f.InFlight[name] = int64(v)
				}
			}
			if err := r.usage(p, &f.After); err != nil {
				return err
			}
			if len(f.InFlight) > 0 || f.After.Goroutines > f.Before.Goroutines+20 || f.After.Descriptors > f.Before.Descriptors+20 {
				return fmt.Errorf("%+v", f)
			}
			return nil
		})
	}
	ctx, cancel = context.WithTimeout(context.WithoutCancel(r.t.Context()), 30*time.Second)
	defer cancel()
	for i, e := range r.engines {
		r.fail(r.await(ctx, func() error {
			var s struct {
				Counters   struct{ Running, Waiting int64 }
				Violations []string
				BadParams  []string `json:"bad_params"`
			}
			if err := r.get(ctx, e.direct()+"/fake/state", &s); err != nil {
				return err
			}
			of := &r.h.Engines[i]
			of.Running, of.Waiting = s.Counters.Running, s.Counters.Waiting
			of.Complaints = slices.Concat(s.Violations, s.BadParams)
			if of.Running+of.Waiting > 0 && ctx.Err() == nil && time.Until(deadline(ctx)) > time.Second {
				return errors.New("it has requests")
			}
			return nil
		}))
	}
}

// drainQueues records the waiting requests after the load, and whether the proxies admit requests again.
func (r *rig) drainQueues() {
	if r.h.QueueLength == 0 {
		return
	}
	for i := range r.h.Final {
		f := &r.h.Final[i]
		p := r.proxies[slices.IndexFunc(r.proxies, func(p *proxy) bool { return p.name == f.Proxy })]
		ctx, cancel := context.WithTimeout(context.WithoutCancel(r.t.Context()), 30*time.Second)
		if err := r.await(ctx, func() error { return r.load.admits(ctx, p) }); err != nil {
			f.Blocked = err.Error()
		}
		cancel()
		m, err := r.metrics(p)
		r.fail(err)
		for name, v := range m {
			if strings.HasPrefix(name, "pd_queue_length{") {
				f.Queued += int(v)
			}
		}
	}
}

func deadline(ctx context.Context) time.Time {
	d, _ := ctx.Deadline()
	return d
}

// report checks the history and prints the result.
func report(t *testing.T, r *rig, duration time.Duration) Verdict {
	h := r.h
	v := Check(h)
	outcomes, lag, stalled := map[Outcome]int{}, time.Duration(0), time.Duration(0)
	for _, q := range h.Requests {
		outcomes[q.Outcome]++
	}
	for _, f := range h.Final {
		lag = max(lag, f.Lag)
	}
	for _, s := range h.Stalls {
		stalled += s.To.Sub(s.From)
	}
	if h.QueueLength > 0 {
		t.Logf("seed %d: %s", h.Seed, h.queueSummary())
	}
	t.Logf("seed %d: %d requests %v; %d faults, %d changes by operators; excused %v; proxies equal etcd %s after the faults; stalls of %s",
		h.Seed, len(h.Requests), outcomes, len(h.Faults), len(h.Ops), v.Excused, lag.Round(time.Millisecond), stalled.Round(time.Millisecond))
	if len(v.Violations) == 0 {
		return v
	}
	rules := map[string]int{}
	for i, one := range v.Violations {
		if rules[one.Rule]++; rules[one.Rule] > 3 || i >= 40 {
			continue
		}
		t.Errorf("seed %d at %s: %s\n%s", h.Seed, h.clock(one.At), one, h.Excerpt(one, 6*time.Second, 30))
	}
	t.Errorf("seed %d: violations by rule: %v\nreplay its schedule: make robustness SEED=%d DURATION=%s", h.Seed, rules, h.Seed, duration)
	r.fail(r.keep())
	return v
}

// keep copies the history and the logs to PD_ROBUSTNESS_DIR.
func (r *rig) keep() error {
	dir := os.Getenv("PD_ROBUSTNESS_DIR")
	if dir == "" {
		return nil
	}
	dir = filepath.Join(dir, fmt.Sprintf("seed-%d", r.h.Seed))
	if err := errors.Join(os.RemoveAll(dir), os.CopyFS(dir, os.DirFS(filepath.Join(r.f.Dir(), "logs")))); err != nil {
		return err
	}
	raw, err := json.MarshalIndent(r.h, "", " ")
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, "history.json"), raw, 0o600)
}

// mixed chooses the processes that run the older version, from the directory PD_ROBUSTNESS_OLD. Eight
// consecutive seeds have all combinations of proxy, agent and pdctl.
func mixed(seed uint64) func(program, process string) string {
	old := os.Getenv("PD_ROBUSTNESS_OLD")
	if old == "" {
		return nil
	}
	return func(program, process string) string {
		bit := slices.Index([]string{"proxy", "agent", "pdctl"}, program)
		// One process of each program has the other version than the rest.
		odd := process == "proxy-2" || process == "decode-2" || process == "prefill-2"
		if (seed>>bit&1 == 1) != odd {
			return filepath.Join(old, program)
		}
		return ""
	}
}
