package health_test

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pdmesh/pdmesh/internal/engine/vllm"
	"github.com/pdmesh/pdmesh/internal/health"
	"github.com/pdmesh/pdmesh/internal/instance"
)

// reading returns the metrics of an engine with one rank.
func reading(change func(*vllm.RankLoad)) []vllm.RankLoad {
	r := vllm.RankLoad{Running: 2, Waiting: 1, Usage: 0.5, PromptTokens: 100, GeneratedTokens: 50, Core: true}
	if change != nil {
		change(&r)
	}
	return []vllm.RankLoad{r}
}

// A change of any sample of the core is progress, and so is a byte of an answer; other
// samples are not. Trials of any proxy show that the core runs, but are no progress.
func TestTracker_Progress(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		change   func(*vllm.RankLoad)
		bytes    bool
		lasts    bool // a later read has the same values
		progress bool
		trials   bool // only the core ran
	}{
		"nothing changes":              {},
		"another request":              {change: func(r *vllm.RankLoad) { r.Running++ }, lasts: true, progress: true},
		"another request in the queue": {change: func(r *vllm.RankLoad) { r.Waiting++ }, lasts: true, progress: true},
		"running":                      {change: func(r *vllm.RankLoad) { r.Running-- }, progress: true},
		"a request leaves the queue":   {change: func(r *vllm.RankLoad) { r.Running++; r.Waiting-- }, progress: true},
		"trials of three proxies":      {change: func(r *vllm.RankLoad) { r.PromptTokens += 3; r.GeneratedTokens += 3 }, trials: true},
		"a trial is queued":            {change: func(r *vllm.RankLoad) { r.Waiting++ }, trials: true},
		"a trial runs after others": {change: func(r *vllm.RankLoad) {
			r.Running++
			r.Usage += 0.001
			r.PromptTokens += 3
			r.GeneratedTokens += 2
		}, trials: true},
		"trials and a token of a request":    {change: func(r *vllm.RankLoad) { r.PromptTokens += 3; r.GeneratedTokens += 4 }, progress: true},
		"trials and a prompt of a request":   {change: func(r *vllm.RankLoad) { r.PromptTokens += 40; r.GeneratedTokens += 3 }, progress: true},
		"a trial and the end of a request":   {change: func(r *vllm.RankLoad) { r.Running--; r.PromptTokens++; r.GeneratedTokens++ }, progress: true},
		"a trial and blocks of a request":    {change: func(r *vllm.RankLoad) { r.Usage += 0.001; r.PromptTokens++; r.GeneratedTokens++ }, progress: true},
		"waiting":                            {change: func(r *vllm.RankLoad) { r.Waiting-- }, progress: true},
		"KV cache usage":                     {change: func(r *vllm.RankLoad) { r.Usage += 0.001 }, progress: true},
		"prompt tokens":                      {change: func(r *vllm.RankLoad) { r.PromptTokens++ }, progress: true},
		"generated tokens":                   {change: func(r *vllm.RankLoad) { r.GeneratedTokens++ }, progress: true},
		"a restart resets the counters":      {change: func(r *vllm.RankLoad) { r.GeneratedTokens = 0 }, progress: true},
		"a sample that is not the core's":    {change: func(r *vllm.RankLoad) { r.Deferred++ }},
		"a byte of an answer in either role": {bytes: true, progress: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var received atomic.Uint64
			run(t, func(o *health.Options) {
				o.Received = func(instance.Key) uint64 { return received.Load() }
			}, func(tr *health.Tracker, _ *source, _ *engine, _ *instance.Instance) {
				p, d := instance.Key{Role: instance.Prefill, Address: "x:1"}, instance.Key{Role: instance.Decode, Address: "x:1"}
				if last, ran, observable := tr.Progress(d); observable || !last.IsZero() || !ran.IsZero() {
					t.Errorf("before the first reading: %s, %s, %t", last, ran, observable)
				}
				begun := time.Now()
				tr.Observe(d, reading(nil))
				time.Sleep(time.Minute)
				if c.bytes {
					received.Add(1)
				}
				tr.Observe(d, reading(c.change))
				want, wantRan := begun, begun
				if c.progress || c.trials {
					wantRan = time.Now()
				}
				if c.lasts {
					time.Sleep(3 * time.Second)
					tr.Observe(d, reading(c.change))
				}
				if c.progress {
					want = time.Now()
				}
				time.Sleep(time.Second)
				for _, k := range []instance.Key{p, d} { // one engine in both roles
					if last, ran, observable := tr.Progress(k); !observable || !last.Equal(want) || !ran.Equal(wantRan) {
						t.Errorf("%s: progress %s ago, ran %s ago, observable %t; want %s, %s ago", k, time.Since(last), time.Since(ran), observable, time.Since(want), time.Since(wantRan))
					}
				}
			})
		})
	}
}

// An engine without the samples of its core, or with unreadable metrics, is not observable.
func TestTracker_ProgressNotObservable(t *testing.T) {
	t.Parallel()
	for name, ranks := range map[string][]vllm.RankLoad{
		"no readings":                   nil,
		"--disable-log-stats":           {},
		"one of two ranks without them": append(reading(nil), vllm.RankLoad{Rank: 1, Running: 1}),
	} {
		run(t, nil, func(tr *health.Tracker, _ *source, _ *engine, in *instance.Instance) {
			tr.Observe(in.Key, reading(nil))
			_, _, observable := tr.Progress(in.Key)
			require.True(t, observable, "not observable with all samples")
			tr.Observe(in.Key, ranks)
			if last, _, observable := tr.Progress(in.Key); observable || !last.IsZero() {
				t.Errorf("%s: observable, progress at %s", name, last)
			}
		})
	}
}

// Progress of one data-parallel rank counts as progress of the engine.
func TestTracker_ProgressOfRanks(t *testing.T) {
	t.Parallel()
	run(t, nil, func(tr *health.Tracker, _ *source, _ *engine, in *instance.Instance) {
		ranks := func(generated float64) []vllm.RankLoad {
			return append(reading(nil), vllm.RankLoad{Rank: 1, GeneratedTokens: generated, Core: true})
		}
		tr.Observe(in.Key, ranks(1))
		time.Sleep(time.Minute)
		tr.Observe(in.Key, ranks(2))
		last, _, _ := tr.Progress(in.Key)
		assert.EqualValues(t, 0, time.Since(last), "age of the progress")
	})
}
