package dashboard

import (
	"math"
	"slices"
	"strconv"
)

const (
	// points is the number of points of a series, and step the seconds between two of them.
	points, step = 60, 5
	// none represents a point without a measurement.
	none value = -1
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

// ring has the last points of a series, oldest first.
type ring []value

func (r *ring) add(v value) {
	*r = append((*r)[max(0, len(*r)+1-points):], v)
}

// figure adds v times factor, or none if v is nil.
func (r *ring) figure(v *float64, factor float64) {
	is := none
	if v != nil {
		is = value(*v * factor)
	}
	r.add(is)
}

// line returns the points, or nil if none has a value.
func (r ring) line() []value {
	if !slices.ContainsFunc(r, func(v value) bool { return v >= 0 }) {
		return nil
	}
	return r
}

// last returns the newest point.
func (r ring) last() value {
	if len(r) == 0 {
		return none
	}
	return r[len(r)-1]
}

// sum returns the sum of all points.
func (r ring) sum() (s float64) {
	for _, v := range r {
		s += float64(max(v, 0))
	}
	return s
}
