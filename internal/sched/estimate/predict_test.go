package estimate_test

import (
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/internal/sched/estimate"
)

func TestPredictions(t *testing.T) {
	t.Parallel()
	e := trained(time.Millisecond)
	if r := new(estimate.Estimator).Rates(name, "p"); r != (estimate.Rates{}) || r.Samples() != 0 || r.TTFT(1e6, 1e6, 1e6) != 0 {
		t.Errorf("without samples: %+v", r)
	}
	// 10 ms for one stream, and 1 ms more for each further one.
	for i := range 64 {
		running := i % 8
		e.Streamed(name, estimate.Decode{Address: "d", Running: float64(running)}, 101, time.Duration(100*(10+running))*time.Millisecond)
		e.Streamed(name, estimate.Decode{Address: "d"}, 2, time.Hour) // too short for a sample
		e.Streamed(name, estimate.Decode{Address: "d"}, 0, time.Hour)
	}
	near := func(what string, got, want float64) {
		t.Helper()
		assert.LessOrEqual(t, math.Abs(got-want), 0.02*want, "%s: %v, want %v", what, got, want)
	}
	for _, address := range []string{"", "p", "another"} {
		r := e.Rates(name, address)
		near("TTFT", r.TTFT(2000, 300, 1000), 2.320)
		near("time per token of 4 streams", r.TimePerToken(4), 0.013)
		near("time per token of 40 streams", r.TimePerToken(40), 0.049)
		near("uncached", r.Uncached, 379) // mean of the last 16
		assert.True(t, r.Samples() == 32 && r.Prefill.Samples == 32 && r.Token.Samples == 64,
			"%d samples: %+v", r.Samples(), r)
	}
	r := estimate.Rates{Output: 50}
	for _, tc := range []struct {
		kv   estimate.KV
		want float64
	}{
		{estimate.KV{Held: 500, Streams: 2}, 0},
		{estimate.KV{Held: 500, Streams: 2, Usage: 0.3}, 0.3},
		{estimate.KV{Held: 500, Streams: 2, Capacity: 1000}, 0.6},
		{estimate.KV{Held: 500, Streams: 2, Capacity: 1000, Usage: 0.7}, 0.7},
		{estimate.KV{Held: 900, Streams: 4, Capacity: 1000}, 1.1},
	} {
		got := r.KVUse(tc.kv)
		assert.LessOrEqual(t, math.Abs(got-tc.want), 1e-9, "%+v: %v, want %v", tc.kv, got, tc.want)
	}
}

// Longer prompts took less time because shorter ones waited for unknown
// work. Such samples do not lead to an estimate of zero time per token.
func TestPrefillTakesTime(t *testing.T) {
	t.Parallel()
	e := new(estimate.Estimator)
	for i := range 64 {
		tokens := float64(2000 + 1000*(i%5))
		e.Prefilled(name, estimate.Prefill{Address: "p", Uncached: tokens}, time.Duration(8000-tokens)*time.Millisecond)
	}
	r := e.Rates(name, "p")
	if mean := r.Prefill.At(4000); r.Prefill.Each < 0.45e-3 || math.Abs(mean-4) > 0.2 {
		t.Errorf("%+v: 4000 tokens take %v s", r.Prefill, mean)
	}
}

// The pace of an instance is computed from the samples of its role, over all models.
func TestPace(t *testing.T) {
	t.Parallel()
	e := new(estimate.Estimator)
	for _, model := range []string{"a", "b"} {
		e.Prefilled(model, estimate.Prefill{Address: "x", Queued: 100, Uncached: 200}, time.Second)
		e.Streamed(model, estimate.Decode{Address: "x", Running: 3}, 11, time.Second)
	}
	for k, want := range map[instance.Key]instance.ListedPace{
		{Role: instance.Prefill, Address: "x"}: {Samples: 2, Seconds: 2, Work: 600},
		{Role: instance.Decode, Address: "x"}:  {Samples: 2, Seconds: .2, Work: 8},
	} {
		assert.Equal(t, want, e.Pace(k), k)
	}
	assert.Equal(t, (instance.ListedPace{}), e.Pace(instance.Key{Role: instance.Decode, Address: "y"}),
		"without samples")
}
