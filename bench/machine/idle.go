package machine

import (
	"runtime"
	"slices"
	"time"
)

// Speed is how fast a loop went that only computes, in rounds per second.
type Speed struct {
	Mean float64 `json:"mean"`
	// Best is that of its fastest slices, of 10 ms each: nineteen in twenty were slower.
	Best float64 `json:"best"`
}

// Idle looks for a while at what a core gives when nothing else of ours runs. What
// Mean is below Best is what another party took, mostly other guests of the same
// host: an operating system that is one itself sees little of that, and counts it
// as the time of whatever was running.
func Idle(d time.Duration) Speed {
	const slice = 10 * time.Millisecond
	var rates []float64
	var sum float64
	for start := time.Now(); time.Since(start) < d; {
		r := rate(slice)
		rates = append(rates, r)
		sum += r
	}
	if len(rates) == 0 {
		return Speed{}
	}
	slices.Sort(rates)
	return Speed{Mean: sum / float64(len(rates)), Best: rates[len(rates)*19/20]}
}

// rate computes for a while. One step needs the result of the one before it, so
// that it takes the same time everywhere but for the clock of the core.
func rate(d time.Duration) float64 {
	const steps = 1000
	x, rounds, start := uint64(1), 0, time.Now()
	for {
		for range steps {
			x = x*6364136223846793005 + 1442695040888963407
		}
		rounds++
		if past := time.Since(start); past >= d {
			runtime.KeepAlive(x) // or nothing would be computed
			return float64(rounds) / past.Seconds()
		}
	}
}
