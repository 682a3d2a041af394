package metrics

import (
	"cmp"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/internal/observe/metrics/scraped"
	"github.com/pdmesh/pdmesh/internal/sched/admission"
)

// Queue has the metrics of the queue in front of the engines. It implements admission.Observer.
type Queue struct {
	wait              *prometheus.HistogramVec
	refused, observed *prometheus.CounterVec
	ratio             prometheus.Histogram
}

var _ admission.Observer = (*Queue)(nil)

// NewQueue creates and registers the metrics. status is called at scrape time, and its list may be
// reordered. At most limit models have their own series, the others share one.
func NewQueue(reg prometheus.Registerer, status func() []instance.ListedQueue, limit int) *Queue {
	f := factory{promauto.With(reg)}
	q := &Queue{
		wait:     f.latency("pd_queue_wait_seconds", "Time that requests waited in the queue of this proxy until they were dispatched, by class; those that did not wait are not counted.", firstTokens(), "class"),
		refused:  f.counters("pd_queue_refused_total", "Requests that the queue refused, by class and reason.", "class", "reason"),
		observed: f.counters("pd_queue_observed_total", "What --queue on would have done with requests, counted with --queue observe: pass, wait, refuse.", "class", "result"),
		ratio: f.NewHistogram(prometheus.HistogramOpts{
			Name: "pd_queue_ttft_ratio", Help: "Measured divided by predicted time from the first leg of a request to its first token.",
			Buckets: []float64{.1, .25, .5, .7, .8, .9, 1, 1.1, 1.25, 1.5, 2, 4, 10},
		}),
	}
	for _, c := range admission.Classes() {
		q.wait.WithLabelValues(c.String())
		for _, reason := range admission.Reasons() {
			q.refused.WithLabelValues(c.String(), reason)
		}
		for _, result := range admission.Results() {
			q.observed.WithLabelValues(c.String(), result)
		}
	}
	reg.MustRegister(scraped.Collector(func(emit scraped.Emit) { readQueues(emit, status(), limit) },
		scraped.New("pd_queue_length", "Requests that wait in the queue of this proxy, by model and class.", "model", "class"),
		scraped.New("pd_queue_bytes", "Bytes of the bodies of these requests, by model.", "model"),
		scraped.New("pd_queue_predicted_wait_seconds", "Wait that a new request of class default would have, by model.", "model"),
		scraped.New("pd_queue_saturation", "Load of a role in units of what the queue lets through, by model: from 1 on, requests wait.", "model", "role"),
		scraped.New("pd_queue_share", "Part of the fleet's capacity for a model that is this proxy's.", "model"),
	))
	return q
}

func readQueues(emit scraped.Emit, list []instance.ListedQueue, limit int) {
	if len(list) > limit {
		slices.SortStableFunc(list, func(a, b instance.ListedQueue) int { // those with waiting requests, then the most used ones
			return cmp.Or(cmp.Compare(b.Bytes, a.Bytes), cmp.Compare(b.Samples, a.Samples))
		})
		other := instance.ListedQueue{Model: otherModels, Waiting: map[string]int{}, Keys: map[string]int{}, Saturation: map[instance.Role]float64{}, Share: 1}
		for i := range list[limit:] {
			other.Merge(&list[limit+i])
			other.Share = min(other.Share, list[limit+i].Share)
		}
		list = append(list[:limit:limit], other)
	}
	for _, s := range list {
		model := instance.Printable(s.Model, maxModelLabel)
		for class, n := range s.Waiting {
			emit("pd_queue_length", float64(n), model, class)
		}
		for role, is := range s.Saturation {
			emit("pd_queue_saturation", is, model, string(role))
		}
		emit("pd_queue_bytes", float64(s.Bytes), model)
		emit("pd_queue_predicted_wait_seconds", s.PredictedWait, model)
		emit("pd_queue_share", s.Share, model)
	}
}

// Waited implements admission.Observer.
func (q *Queue) Waited(c admission.Class, d time.Duration) {
	q.wait.WithLabelValues(c.String()).Observe(d.Seconds())
}

// NotAdmitted implements admission.Observer.
func (q *Queue) NotAdmitted(c admission.Class, reason string) {
	q.refused.WithLabelValues(c.String(), reason).Inc()
}

// Observed implements admission.Observer.
func (q *Queue) Observed(c admission.Class, result string) {
	q.observed.WithLabelValues(c.String(), result).Inc()
}

// Predicted implements admission.Observer.
func (q *Queue) Predicted(ratio float64) { q.ratio.Observe(ratio) }
