package dashboard

import (
	"math"
	"strconv"
)

const (
	// points is how many points a line has, and step the seconds between two of them.
	points, step = 60, 5
	// none represents a point at which there was nothing to measure.
	none float32 = -1
)

// value is a number of a line; none is written as null.
type value float32

// MarshalJSON writes three digits, which is more than a line shows.
func (v value) MarshalJSON() ([]byte, error) {
	f := float64(v)
	switch {
	case f < 0 || math.IsNaN(f) || math.IsInf(f, 0):
		return []byte("null"), nil
	case f >= 100:
		return strconv.AppendFloat(nil, f, 'f', 0, 64), nil
	}
	return strconv.AppendFloat(nil, f, 'g', 3, 64), nil
}

// ring has the last points of a line.
type ring struct {
	at   [points]float32
	next int
	n    int
}

func (r *ring) add(v float32) {
	r.at[r.next] = v
	r.next = (r.next + 1) % points
	r.n = min(r.n+1, points)
}

// line returns the points, the oldest first; nil where there was never one to show.
func (r *ring) line() []value {
	out, some := make([]value, 0, r.n), false
	for i := range r.n {
		v := r.at[(r.next-r.n+i+points)%points]
		out, some = append(out, value(v)), some || v >= 0
	}
	if !some {
		return nil
	}
	return out
}

// last is the newest point.
func (r *ring) last() value {
	if r.n == 0 {
		return value(none)
	}
	return value(r.at[(r.next-1+points)%points])
}

// sum is that of all points.
func (r *ring) sum() (s float64) {
	for i := range r.n {
		if v := r.at[(r.next-1-i+points)%points]; v > 0 {
			s += float64(v)
		}
	}
	return s
}
