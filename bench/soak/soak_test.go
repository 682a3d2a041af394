package soak

import (
	"errors"
	"math"
	"testing"
)

func TestVerdict(t *testing.T) {
	t.Parallel()
	samples := func(rss func(minute float64) float64) (out []Sample) {
		for i := range 60 {
			m := float64(i) / 2
			out = append(out, Sample{At: m * 60, RSS: int64(rss(m)), Goroutines: 100, Sockets: 50 + i%2})
		}
		return out
	}
	tests := []struct {
		name  string
		r     Result
		slope float64
		bad   bool
	}{
		{"flat", Result{Right: 1, Samples: samples(func(float64) float64 { return 40_000 })}, 0, false},
		{"flat after a start", Result{Right: 1, Samples: samples(func(m float64) float64 { return min(m*8_000, 40_000) })}, 0, false},
		{"it grows", Result{Right: 1, Samples: samples(func(m float64) float64 { return 40_000 + 500*m })}, 500, true},
		{"a wrong answer", Result{Right: 1, Wrong: 1, Samples: samples(func(float64) float64 { return 1 })}, 0, true},
		{"nothing answered", Result{Samples: samples(func(float64) float64 { return 1 })}, 0, true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			err := tt.r.verdict(Options{MaxSlope: 64})
			if (err != nil) != tt.bad || (err != nil && !errors.Is(err, ErrSoak)) {
				t.Errorf("error %v", err)
			}
			if math.Abs(tt.r.RSSSlope-tt.slope) > 1 {
				t.Errorf("slope %v KiB per minute, want %v", tt.r.RSSSlope, tt.slope)
			}
		})
	}
}
