package stage_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/pdmesh/pdmesh/internal/forward/stage"
)

func TestStages_Consecutive(t *testing.T) {
	t.Parallel()
	start := time.Now()
	at := func(ms int) time.Time { return start.Add(time.Duration(ms) * time.Millisecond) }
	for _, tc := range []struct {
		name   string
		way    func(*stage.Times)
		stream bool
		want   [5]int // queue, retry, prefill, handover, decode, in ms
	}{
		{"a pair, stream", func(t *stage.Times) {
			t.BeginPrefill(at(2))
			t.PassAt(stage.Prefilled, at(12))
			t.BeginDecode(at(13))
			t.PassAt(stage.First, at(20))
		}, true, [5]int{2, 0, 10, 8, 80}},
		{"a pair, whole", func(t *stage.Times) {
			t.BeginPrefill(at(2))
			t.PassAt(stage.Prefilled, at(12))
			t.BeginDecode(at(13))
		}, false, [5]int{2, 0, 10, 0, 88}},
		{"a second pair", func(t *stage.Times) {
			t.BeginPrefill(at(2))
			t.PassAt(stage.Prefilled, at(5))
			t.BeginDecode(at(6))
			t.BeginPrefill(at(10))
			t.PassAt(stage.Prefilled, at(30))
			t.BeginDecode(at(31))
			t.PassAt(stage.First, at(40))
		}, true, [5]int{2, 8, 20, 10, 60}},
		{"decode-only after prefill failed", func(t *stage.Times) {
			t.BeginPrefill(at(2))
			t.PassAt(stage.Prefilled, at(5))
			t.WithoutPrefill()
			t.BeginDecode(at(10))
			t.PassAt(stage.First, at(40))
		}, true, [5]int{2, 8, 30, 0, 60}},
		{"decode-only, whole", func(t *stage.Times) { t.BeginDecode(at(1)) }, false, [5]int{1, 0, 0, 0, 99}},
		{"both at once, decode answered first", func(t *stage.Times) {
			t.BeginDecode(at(1))
			t.BeginPrefill(at(2))
			t.PassAt(stage.First, at(30))
			t.PassAt(stage.Prefilled, at(31))
		}, true, [5]int{1, 1, 28, 0, 70}},
		{"in prefill", func(t *stage.Times) { t.BeginPrefill(at(2)) }, true, [5]int{2, 0, 98, 0, 0}},
		{"in KV transfer", func(t *stage.Times) {
			t.BeginPrefill(at(2))
			t.PassAt(stage.Prefilled, at(12))
		}, true, [5]int{2, 0, 10, 88, 0}},
		{"not sent yet", func(*stage.Times) {}, true, [5]int{100, 0, 0, 0, 0}},
	} {
		times := &stage.Times{Start: start}
		tc.way(times)
		s := times.Stages(100*time.Millisecond, tc.stream)
		got, sum := [5]int{}, time.Duration(0)
		for i, d := range []time.Duration{s.Queue, s.Retry, s.Prefill, s.Handover, s.Decode} {
			got[i] = int(d.Milliseconds())
			sum += d
		}
		assert.True(t, got == tc.want && sum == 100*time.Millisecond,
			"%s: %v, want %v; together %v", tc.name, got, tc.want, sum)
	}
}
