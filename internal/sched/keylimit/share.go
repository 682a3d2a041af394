package keylimit

import "math"

// Share returns the part of a limit that proxy i may use. demands has the demand of every proxy in the unit
// of the limit, in the same order in all proxies. Above the limit, shares are proportional to demand. Below
// it, each proxy gets its demand and an equal part of the rest, for requests that arrive before the next
// exchange. The shares of all proxies sum to the limit.
func Share(limit float64, demands []float64, i int) float64 {
	sum := 0.0
	for _, d := range demands {
		sum += d
	}
	if sum >= limit {
		return limit * demands[i] / sum
	}
	return demands[i] + (limit-sum)/float64(len(demands))
}

// wholeShare returns Share for a limit of whole units: shares are rounded so that they sum to the limit,
// except that none is below 1.
func wholeShare(limit float64, demands []float64, i int) int64 {
	before := 0.0
	for j := range i {
		before += Share(limit, demands, j)
	}
	// The sum of floats may be just below a whole number.
	const tiny = 1e-6
	return max(1, int64(math.Floor(before+Share(limit, demands, i)+tiny))-int64(math.Floor(before+tiny)))
}
