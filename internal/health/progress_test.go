package health_test

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/pdmesh/pdmesh/internal/engine/vllm"
	"github.com/pdmesh/pdmesh/internal/health"
	"github.com/pdmesh/pdmesh/internal/instance"
)

// reading is the metrics of an engine with one rank.
func reading(change func(*vllm.RankLoad)) []vllm.RankLoad {
	r := vllm.RankLoad{Running: 2, Waiting: 1, Usage: 0.5, PromptTokens: 100, GeneratedTokens: 50, Core: true}
	if change != nil {
		change(&r)
	}
	return []vllm.RankLoad{r}
}

// Each sample of the core is progress when it changes, and so is a byte of an answer; other
// samples are not.
func TestTracker_Progress(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		change   func(*vllm.RankLoad)
		bytes    bool
		progress bool
	}{
		"nothing changes":                    {},
		"running":                            {change: func(r *vllm.RankLoad) { r.Running++ }, progress: true},
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
				if last, observable := tr.Progress(d); observable || !last.IsZero() {
					t.Errorf("before the first reading: %s, %t", last, observable)
				}
				begun := time.Now()
				tr.Observe(d, reading(nil))
				time.Sleep(time.Minute)
				if c.bytes {
					received.Add(1)
				}
				tr.Observe(d, reading(c.change))
				want := begun
				if c.progress {
					want = time.Now()
				}
				time.Sleep(time.Second)
				for _, k := range []instance.Key{p, d} { // one engine, in both roles
					if last, observable := tr.Progress(k); !observable || !last.Equal(want) {
						t.Errorf("%s: progress %s ago, observable %t; want %s ago", k, time.Since(last), observable, time.Since(want))
					}
				}
			})
		})
	}
}

// An engine without the samples of its core, or whose metrics cannot be read, is not
// observable.
func TestTracker_ProgressNotObservable(t *testing.T) {
	t.Parallel()
	for name, ranks := range map[string][]vllm.RankLoad{
		"no readings":                   nil,
		"--disable-log-stats":           {},
		"one of two ranks without them": append(reading(nil), vllm.RankLoad{Rank: 1, Running: 1}),
	} {
		run(t, nil, func(tr *health.Tracker, _ *source, _ *engine, in *instance.Instance) {
			tr.Observe(in.Key, reading(nil))
			if _, observable := tr.Progress(in.Key); !observable {
				t.Fatal("not observable with all samples")
			}
			tr.Observe(in.Key, ranks)
			if last, observable := tr.Progress(in.Key); observable || !last.IsZero() {
				t.Errorf("%s: observable, progress at %s", name, last)
			}
		})
	}
}

// Progress of one data-parallel rank is progress of the engine.
func TestTracker_ProgressOfRanks(t *testing.T) {
	t.Parallel()
	run(t, nil, func(tr *health.Tracker, _ *source, _ *engine, in *instance.Instance) {
		ranks := func(generated float64) []vllm.RankLoad {
			return append(reading(nil), vllm.RankLoad{Rank: 1, GeneratedTokens: generated, Core: true})
		}
		tr.Observe(in.Key, ranks(1))
		time.Sleep(time.Minute)
		tr.Observe(in.Key, ranks(2))
		if last, _ := tr.Progress(in.Key); time.Since(last) != 0 {
			t.Errorf("progress %s ago", time.Since(last))
		}
	})
}
