package metrics

import (
	"maps"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/pdmesh/pdmesh/internal/histogram"
)

// seconds makes bounds.
func seconds(list ...float64) histogram.Bounds {
	b := make(histogram.Bounds, len(list))
	for i, s := range list {
		b[i] = time.Duration(s * float64(time.Second))
	}
	return b
}

// The bounds are vLLM's own, so that the two can be laid over each other; those of short
// times go further down, where a warm cache and the proxy's own stages are.

func firstTokens() histogram.Bounds {
	return seconds(.001, .005, .01, .02, .04, .06, .08, .1, .25, .5, .75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640, 2560)
}

func betweenTokens() histogram.Bounds {
	return seconds(.001, .0025, .005, .01, .025, .05, .075, .1, .15, .2, .3, .4, .5, .75, 1, 2.5, 5, 7.5, 10, 20, 40, 80)
}

// Series by instance are many: they have fewer bounds.

func fewFirstTokens() histogram.Bounds {
	return seconds(.05, .1, .25, .5, 1, 2.5, 5, 10, 20, 40, 160)
}

func fewBetweenTokens() histogram.Bounds {
	return seconds(.005, .01, .025, .05, .1, .2, .5, 1, 5)
}

func requests() histogram.Bounds {
	return seconds(.01, .05, .1, .3, .5, .8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680)
}

func stages() histogram.Bounds {
	return seconds(.0001, .0005, .001, .005, .01, .02, .04, .06, .08, .1, .25, .5, .75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640, 2560)
}

// latency is a family of histograms. It implements prometheus.Collector.
type latency struct {
	desc   *prometheus.Desc
	bounds histogram.Bounds

	known atomic.Pointer[map[[3]string]*histogram.Histogram]
	learn sync.Mutex // one addition to known at a time
	width int        // labels
}

func newLatency(name, help string, bounds histogram.Bounds, labels ...string) *latency {
	l := &latency{desc: prometheus.NewDesc(name, help, labels, nil), bounds: bounds, width: len(labels)}
	l.known.Store(&map[[3]string]*histogram.Histogram{})
	return l
}

// of returns the histogram with these values of its labels, the rest of which is "".
func (l *latency) of(values [3]string) *histogram.Histogram {
	if h, ok := (*l.known.Load())[values]; ok {
		return h
	}
	l.learn.Lock()
	defer l.learn.Unlock()
	if h, ok := (*l.known.Load())[values]; ok {
		return h
	}
	next := maps.Clone(*l.known.Load())
	h := histogram.New(l.bounds)
	next[values] = h
	l.known.Store(&next)
	return h
}

// lookup returns the histogram with these values of its labels, nil if there is none.
func (l *latency) lookup(values [3]string) *histogram.Histogram { return (*l.known.Load())[values] }

// drop removes the series with these values of its labels.
func (l *latency) drop(values [3]string) {
	l.learn.Lock()
	defer l.learn.Unlock()
	if _, ok := (*l.known.Load())[values]; ok {
		next := maps.Clone(*l.known.Load())
		delete(next, values)
		l.known.Store(&next)
	}
}

// Describe implements prometheus.Collector.
func (l *latency) Describe(ch chan<- *prometheus.Desc) { ch <- l.desc }

// Collect implements prometheus.Collector.
func (l *latency) Collect(ch chan<- prometheus.Metric) {
	for values, h := range *l.known.Load() {
		var c histogram.Counts
		h.Read(&c)
		buckets, n := make(map[float64]uint64, len(l.bounds)), uint64(0)
		for i, end := range l.bounds {
			n += c.N[i]
			buckets[end.Seconds()] = n
		}
		ch <- prometheus.MustNewConstHistogram(l.desc, c.Total(), c.Sum.Seconds(), buckets, values[:l.width]...)
	}
}

// Between returns what counts the times between the events of an endpoint's streams.
func (m *Metrics) Between(endpoint string) *histogram.Histogram {
	return m.between.of([3]string{endpoint})
}
