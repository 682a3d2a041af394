package estimate_test

import (
	"fmt"
	"math"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pdmesh/pdmesh/internal/forward/bypass"
	"github.com/pdmesh/pdmesh/internal/sched/estimate"
)

const name = "m"

// trained returns an Estimator with the samples of a fleet: 1 ms for each token of
// prefill, 20 ms for a KV transfer, and perToken for each token that decode computes.
func trained(perToken time.Duration) *estimate.Estimator {
	e := new(estimate.Estimator)
	for i := range 32 {
		tokens := float64(100 + 100*(i%7))
		e.Prefilled(name, estimate.Prefill{Address: "p", Uncached: tokens}, time.Duration(tokens)*time.Millisecond)
		e.Handed(name, estimate.Decode{Address: "d", Tokens: tokens}, 20*time.Millisecond)
		e.ServedDecodeOnly(name, estimate.Decode{Address: "d", Tokens: tokens}, time.Duration(tokens)*perToken)
	}
	return e
}

func TestDecisions(t *testing.T) {
	t.Parallel()
	ms := time.Millisecond
	for _, tc := range []struct {
		name     string
		perToken time.Duration
		p        estimate.Prefill
		d        estimate.Decode
		want     estimate.Decision
	}{
		{"short, disturbs no stream", ms, estimate.Prefill{Uncached: 50}, estimate.Decode{Tokens: 50}, estimate.Decision{DecodeOnly: true, Reason: bypass.SmallUncached}},
		{"streams would wait", ms, estimate.Prefill{Uncached: 500}, estimate.Decode{Tokens: 500, Running: 1}, estimate.Decision{Reason: estimate.Faster}},
		{"prefill has a queue", ms, estimate.Prefill{Uncached: 500, Queued: 2000}, estimate.Decode{Tokens: 500, Running: 1}, estimate.Decision{DecodeOnly: true, Reason: bypass.PrefillQueue}},
		{"so has decode", ms, estimate.Prefill{Uncached: 500, Queued: 2000}, estimate.Decode{Tokens: 500, Running: 1, Queued: 2000}, estimate.Decision{Reason: estimate.Faster}},
		{"prefill has most of it in its cache", ms, estimate.Prefill{Uncached: 10}, estimate.Decode{Tokens: 500}, estimate.Decision{Reason: estimate.Faster}},
		{"decode is slow", 4 * ms, estimate.Prefill{Uncached: 300}, estimate.Decode{Tokens: 300}, estimate.Decision{Reason: estimate.Faster}},
		{"decode is full", ms, estimate.Prefill{Uncached: 50, Queued: 9000}, estimate.Decode{Tokens: 50, Full: true}, estimate.Decision{Reason: estimate.Full}},
	} {
		tc.p.Address, tc.d.Address = "p", "d"
		was := estimate.Decision{DecodeOnly: true, Reason: bypass.SmallUncached}
		got := trained(tc.perToken).Confirm(name, was, tc.p, tc.d)
		stall := tc.d.Running * tc.d.Tokens * tc.perToken.Seconds()
		if !got.DecodeOnly {
			stall = 0
		}
		assert.LessOrEqual(t, math.Abs(got.Stall-stall), 0.01*stall,
			"%s: streams wait %v s, want %v", tc.name, got.Stall, stall)
		if got.Stall = 0; got != tc.want {
			t.Errorf("%s: %+v, want %+v", tc.name, got, tc.want)
		}
	}
}

// A longer queue at prefill never makes decode-only less likely,
// and more work on decode never makes it more likely.
func TestMonotonic(t *testing.T) {
	t.Parallel()
	ask := func(p estimate.Prefill, d estimate.Decode) bool {
		p.Address, d.Address = "p", "d"
		return trained(time.Millisecond).Confirm(name, estimate.Decision{DecodeOnly: true}, p, d).DecodeOnly
	}
	for tokens := 20.0; tokens < 2000; tokens *= 3 {
		before := false
		for queued := 0.0; queued < 20000; queued += 500 {
			is := ask(estimate.Prefill{Uncached: tokens, Queued: queued}, estimate.Decode{Tokens: tokens, Running: 3})
			assert.False(t, before && !is, "%v tokens: not alone any more with %v queued", tokens, queued)
			before = is
		}
		assert.True(t, before, "%v tokens wait behind everything", tokens)
		before = true
		for running := 0.0; running < 100; running++ {
			is := ask(estimate.Prefill{Uncached: tokens, Queued: 500}, estimate.Decode{Tokens: tokens, Running: running})
			assert.False(t, is && !before, "%v tokens: alone again beside %v streams", tokens, running)
			before = is
		}
		assert.False(t, before, "%v tokens disturb the running streams", tokens)
	}
}

// The estimator starts without samples, learns, and explores so that its estimates stay correct.
func TestLearnsAndExplores(t *testing.T) {
	t.Parallel()
	e := new(estimate.Estimator)
	p := estimate.Prefill{Address: "p", Uncached: 100}
	require.Equal(t, (estimate.Decision{Reason: estimate.Learning}), e.Decide(name, p, 100), "without a sample")
	for range 4 {
		e.Prefilled(name, p, 100*time.Millisecond)
		e.Handed(name, estimate.Decode{Address: "d", Tokens: 100}, 20*time.Millisecond)
	}
	count := map[estimate.Decision]int{}
	for range 64 {
		count[e.Decide(name, p, 100)]++
	}
	require.True(t, count[estimate.Decision{DecodeOnly: true, Reason: bypass.Explore}] == 8 && len(count) == 2,
		"without a sample of decode alone: %v", count)
	for range 4 {
		e.ServedDecodeOnly(name, estimate.Decode{Address: "d", Tokens: 100}, 100*time.Millisecond)
	}
	clear(count)
	for range 640 {
		count[e.Decide(name, p, 100)]++
	}
	if count[estimate.Decision{Reason: estimate.Refresh}] != 10 || count[estimate.Decision{DecodeOnly: true, Reason: bypass.SmallUncached}] != 630 {
		t.Errorf("of 640 decisions: %v", count)
	}
}

// Decode-only is explored even if it is expected to be slower, but not if it would be far too slow.
func TestExplore_WorseWithinLimit(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		queued float64
		want   bool
	}{{0, true}, {5000, false}} {
		e := new(estimate.Estimator)
		for range 8 {
			e.Prefilled(name, estimate.Prefill{Address: "p", Uncached: 100}, 10*time.Millisecond)
			e.Handed(name, estimate.Decode{Address: "d", Tokens: 100, Queued: tc.queued}, 100*time.Millisecond)
		}
		tried := false
		for range 64 {
			tried = tried || e.Decide(name, estimate.Prefill{Address: "p", Uncached: 100}, 100).Reason == bypass.Explore
		}
		assert.Equal(t, tc.want, tried, "%v tokens wait at decode: tried", tc.queued)
	}
}

// A decision near the threshold does not change with every sample.
func TestHysteresis(t *testing.T) {
	t.Parallel()
	e := trained(time.Millisecond)
	at := func(queued float64) bool {
		return e.Confirm(name, estimate.Decision{DecodeOnly: true}, estimate.Prefill{Address: "p", Uncached: 500, Queued: queued}, estimate.Decode{Address: "d", Tokens: 500, Running: 1}).DecodeOnly
	}
	// The threshold without hysteresis is 480.
	for _, step := range []struct {
		queued float64
		want   bool
	}{{480, false}, {540, false}, {700, true}, {480, true}, {420, true}, {300, false}, {480, false}} {
		require.Equal(t, step.want, at(step.queued), "%v queued: alone", step.queued)
	}
}

// A single outlier changes no decision; a real change does.
func TestRobust(t *testing.T) {
	t.Parallel()
	e := trained(time.Millisecond)
	ask := func() bool {
		return e.Confirm(name, estimate.Decision{DecodeOnly: true}, estimate.Prefill{Address: "p", Uncached: 100}, estimate.Decode{Address: "d", Tokens: 50}).DecodeOnly
	}
	e.ServedDecodeOnly(name, estimate.Decode{Address: "d", Tokens: 300}, time.Hour)
	assert.True(t, ask(), "an hour that one request took is believed")
	for i := range 100 {
		tokens := float64(50 + 50*(i%5))
		e.ServedDecodeOnly(name, estimate.Decode{Address: "d", Tokens: tokens}, time.Duration(tokens)*20*time.Millisecond)
	}
	assert.False(t, ask(), "slow decode was not noticed")
}

// Estimates of unused models are removed after a while; those of used ones are kept.
func TestForgetsUnusedModels(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		e := new(estimate.Estimator)
		use := func(model string) {
			for range 4 {
				e.Prefilled(model, estimate.Prefill{Address: "p", Uncached: 100}, 100*time.Millisecond)
			}
		}
		const days = 60
		for day := range days {
			use(name)
			use(fmt.Sprint("adapter-", day))
			time.Sleep(24 * time.Hour)
		}
		left := 0
		for day := range days {
			if known := e.Rates(fmt.Sprint("adapter-", day), "").Prefill.Samples > 0; known {
				left++
			} else if day >= days-7 {
				t.Errorf("an adapter that was used %d days ago is not known", days-day)
			}
		}
		assert.LessOrEqual(t, left, 15, "%d of %d adapters are known, of which one a day was used", left, days)
		got := e.Rates(name, "p").Prefill.Samples
		assert.Equal(t, 4*days, got, "the model that is used every day has %d samples, want %d", got, 4*days)
	})
}
