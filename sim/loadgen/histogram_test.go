package loadgen_test

import (
	"math"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/pdmesh/pdmesh/sim/loadgen"
)

func TestHistogramQuantiles(t *testing.T) {
	t.Parallel()
	rng := rand.New(rand.NewPCG(1, 2))
	var h loadgen.Histogram
	var all []time.Duration
	for range 20000 {
		d := time.Duration(math.Exp(rng.Float64() * 25)) // 1 ns to about 72 s
		all = append(all, d)
		h.Record(d)
	}
	slices.Sort(all)
	for _, q := range []float64{0, 0.001, 0.5, 0.9, 0.99, 0.999, 1} {
		rank := max(int(math.Ceil(q*float64(len(all)))), 1)
		exact := all[rank-1]
		got := h.Quantile(q)
		assert.True(t, got >= exact && !(float64(got) > float64(exact)*1.016+1),
			"quantile %g = %v, exact %v", q, got, exact)
	}
	assert.True(t, h.Max() == all[len(all)-1] && h.Count() == 20000, "max %v, count %d", h.Max(), h.Count())
}

func TestHistogramEdges(t *testing.T) {
	t.Parallel()
	var h loadgen.Histogram
	assert.True(t, h.Quantile(0.5) == 0 && h.Max() == 0, "an empty histogram must return zeros")
	h.Record(-5)
	h.Record(math.MaxInt64)
	assert.True(t, h.Quantile(0) == 0 && h.Quantile(1) == math.MaxInt64,
		"quantiles %v and %v", h.Quantile(0), h.Quantile(1))
	var one loadgen.Histogram
	one.Record(1234567)
	assert.EqualValues(t, 1234567, one.Quantile(0.5), "one value: median")
}

func TestHistogramConcurrent(t *testing.T) {
	t.Parallel()
	var h loadgen.Histogram
	var group sync.WaitGroup
	for g := range 4 {
		group.Go(func() {
			for i := range 1000 {
				h.Record(time.Duration(g*1000 + i))
			}
		})
	}
	group.Wait()
	assert.True(t, h.Count() == 4000 && h.Max() == 3999, "count %d, max %d", h.Count(), h.Max())
}
