package dashboard

import (
	"math"
	"strconv"
)

const (
	// points is the number of points of a series, and step the seconds between two of them.
	points, step = 60, 5
	// none represents a point without a measurement.
	none float32 = -1
)

// value is a number of a series; none is encoded as null.
type value float32

// MarshalJSON encodes at least three significant digits, which is more than the page can show.
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

// ring has the last points of a series.
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

// figure adds a figure times a factor, none if it is nil.
func (r *ring) figure(v *float64, factor float64) {
	is := none
	if v != nil {
		is = float32(*v * factor)
	}
	r.add(is)
}

// line returns the points, oldest first, or nil if there never was a value.
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

// last returns the newest point.
func (r *ring) last() value {
	if r.n == 0 {
		return value(none)
	}
	return value(r.at[(r.next-1+points)%points])
}

// sum returns the sum of all points.
func (r *ring) sum() (s float64) {
	for i := range r.n {
		if v := r.at[(r.next-1-i+points)%points]; v > 0 {
			s += float64(v)
		}
	}
	return s
}
