package metrics

import (
	"maps"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"github.com/pdmesh/pdmesh/internal/discovery/schema"
	"github.com/pdmesh/pdmesh/internal/forward"
	"github.com/pdmesh/pdmesh/internal/forward/relay"
	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/internal/openai"
)

const (
	// otherModels is the label of all models without their own label.
	otherModels = "other"
	// maxModelLabel bounds a label in bytes.
	maxModelLabel = 200
)

// models counts requests by model. There are at most max labels besides otherModels, for models that
// instances list or have served, and for model routes. A model loses its label to another one if it is
// neither listed nor a model route any more, or if it has no requests and the other one has.
type models struct {
	max                int
	requests, tokens   *prometheus.CounterVec
	firstToken, perOut *prometheus.HistogramVec
	other              *modelSeries

	known    atomic.Pointer[map[string]*modelSeries] // by the name in requests
	mu       sync.Mutex                              // serializes changes of known; guards the fields below
	snapshot *instance.Snapshot
	full     [2]*instance.Snapshot // snapshots in which no label could be freed for a model without requests, and for one with requests
}

// modelSeries are the series of one model.
type modelSeries struct {
	label                 string
	used                  atomic.Bool                   // it has a request
	listed                bool                          // an instance has listed it, or it was a model route; guarded by models.mu
	requests              map[string]prometheus.Counter // by outcome
	input, cached, output prometheus.Counter
	firstToken, perOut    prometheus.Observer
}

func newModels(f factory, most int) *models {
	m := &models{
		max: most, snapshot: instance.NewSnapshot(0, nil),
		requests:   f.counters("pd_model_requests_total", "Requests that have ended, by model and outcome.", "model", "outcome"),
		tokens:     f.counters("pd_model_tokens_total", "Tokens of requests, by model: input, cached (of the input, in the cache of the instance that computed it), output.", "model", "what"),
		firstToken: f.latency("pd_model_time_to_first_token_seconds", "Time from a request's arrival to the first content of its stream, by model.", firstTokens(), "model"),
		perOut:     f.latency("pd_model_time_per_output_token_seconds", "Mean time between the tokens of a stream after the first, one observation for each stream, by model.", betweenTokens(), "model"),
	}
	m.known.Store(&map[string]*modelSeries{})
	m.other = m.series(otherModels)
	return m
}

// series returns the series of a label, all of them at zero if they are new.
func (m *models) series(label string) *modelSeries {
	s := &modelSeries{
		label: label, requests: map[string]prometheus.Counter{},
		input: m.tokens.WithLabelValues(label, "input"), cached: m.tokens.WithLabelValues(label, "cached"), output: m.tokens.WithLabelValues(label, "output"),
		firstToken: m.firstToken.WithLabelValues(label), perOut: m.perOut.WithLabelValues(label),
	}
	for _, o := range outcomes() {
		s.requests[o.name] = m.requests.WithLabelValues(label, o.name)
	}
	return s
}

// done counts a finished request.
func (m *models) done(e *forward.Entry) {
	if e.Model == "" && openai.KindOf(e.Endpoint) == openai.Other {
		return
	}
	s := (*m.known.Load())[e.Model]
	if s == nil {
		// Names from clients get no label: a model must have been served.
		if s = m.other; e.Outcome == relay.OutcomeOK && e.Model != "" {
			s = m.admit(e.Model, true)
		}
	}
	if !s.used.Load() {
		s.used.Store(true)
	}
	if c := s.requests[e.Outcome]; c != nil {
		c.Inc()
	} else {
		m.requests.WithLabelValues(s.label, e.Outcome).Inc()
	}
	s.input.Add(float64(e.Input))
	s.cached.Add(float64(e.Cached))
	s.output.Add(float64(e.Output))
	if e.FirstToken > 0 {
		s.firstToken.Observe(e.FirstToken.Seconds())
	}
	if e.Gap > 0 {
		s.perOut.Observe(e.Gap.Seconds())
	}
}

// admit returns the series of a model, with its own label if one is free. used is true if the model has
// a request, false if an instance lists it or it is a model route.
func (m *models) admit(model string, used bool) *modelSeries {
	m.mu.Lock()
	defer m.mu.Unlock()
	known := *m.known.Load()
	if s := known[model]; s != nil {
		s.listed = s.listed || !used
		return s
	}
	if model == otherModels || len(known) >= m.max && !m.free(used) {
		return m.other
	}
	label := instance.Printable(model, maxModelLabel)
	next := maps.Clone(*m.known.Load())
	var s *modelSeries
	for _, is := range next {
		if is.label == label { // truncated names may be equal
			s = is
		}
	}
	if s == nil {
		s = m.series(label)
	}
	s.listed = s.listed || !used || m.current()[model]
	next[model] = s
	m.known.Store(&next)
	return s
}

// current returns the models that instances list, and the model routes. The caller holds mu.
func (m *models) current() map[string]bool {
	current := map[string]bool{}
	for _, in := range m.snapshot.All() {
		for _, model := range in.Record.Models {
			current[model] = true
		}
	}
	for _, route := range m.snapshot.Documents.In(schema.Models) {
		current[route.Address] = true
	}
	return current
}

// free takes the labels of models that were listed, or were model routes, and are not current. If there
// are none and used is true, it takes the label of one model without requests. It reports whether it has
// freed any. The caller holds mu.
func (m *models) free(used bool) bool {
	full := &m.full[0]
	if used {
		full = &m.full[1]
	}
	if m.max == 0 || *full == m.snapshot {
		return false
	}
	current := m.current()
	known := maps.Clone(*m.known.Load())
	before := len(known)
	maps.DeleteFunc(known, func(model string, s *modelSeries) bool { return s.listed && !current[model] })
	if len(known) == before && used {
		for model, s := range known {
			if !s.used.Load() {
				delete(known, model)
				break
			}
		}
	}
	if len(known) == before {
		*full = m.snapshot
		return false
	}
	kept := map[string]bool{}
	for _, s := range known {
		kept[s.label] = true
	}
	for _, s := range *m.known.Load() {
		if !kept[s.label] {
			m.requests.DeletePartialMatch(prometheus.Labels{"model": s.label})
			m.tokens.DeletePartialMatch(prometheus.Labels{"model": s.label})
			m.firstToken.DeleteLabelValues(s.label)
			m.perOut.DeleteLabelValues(s.label)
		}
	}
	m.known.Store(&known)
	return true
}

// follow follows the membership and the model routes, whose series begin at zero.
func (m *models) follow(now *instance.Snapshot) {
	m.mu.Lock()
	m.snapshot = now
	m.mu.Unlock()
	for _, route := range now.Documents.In(schema.Models) {
		m.admit(route.Address, false)
	}
}

// instances has the request times by instance. An instance that has left the membership has no
// series.
type instances struct {
	firstToken, perOut *prometheus.HistogramVec
	failed             *prometheus.CounterVec
	snapshot           atomic.Pointer[instance.Snapshot]
}

func newInstances(f factory) *instances { // these series are numerous and therefore have fewer bounds
	return &instances{
		firstToken: f.latency("pd_instance_time_to_first_token_seconds",
			"Time from a request's arrival to the first content of its stream, by the instance that computed the prompt.", []float64{.05, .1, .25, .5, 1, 2.5, 5, 10, 20, 40, 160}, "role", "instance"),
		perOut: f.latency("pd_instance_time_per_output_token_seconds",
			"Mean time between the tokens of a stream after the first, one observation for each stream, by decode instance.", []float64{.005, .01, .025, .05, .1, .2, .5, 1, 5}, "role", "instance"),
		failed: f.counters("pd_instance_failures_total", "Failed legs of an instance, by the class of the failure.", "role", "instance", "class"),
	}
}

// done counts a finished request.
func (i *instances) done(e *forward.Entry) {
	prefill, decode := e.Began()
	if e.FirstToken > 0 {
		role, address := instance.Prefill, prefill
		if address == "" {
			role, address = instance.Decode, decode
		}
		i.observe(i.firstToken, role, address, e.FirstToken)
	}
	if e.Gap > 0 {
		i.observe(i.perOut, instance.Decode, decode, e.Gap)
	}
}

// observe records a time of an instance that is still a member.
func (i *instances) observe(h *prometheus.HistogramVec, role instance.Role, target string, d time.Duration) {
	address, _, _ := strings.Cut(target, "#") // of a rank: address#rank
	if i.member(instance.Key{Role: role, Address: address}) {
		h.WithLabelValues(string(role), address).Observe(d.Seconds())
	}
}

// member reports whether an instance is in the newest snapshot.
func (i *instances) member(k instance.Key) (is bool) {
	if snapshot := i.snapshot.Load(); snapshot != nil {
		_, is = snapshot.Lookup(k)
	}
	return is
}

// changed deletes the series of an instance that has left the membership.
func (i *instances) changed(now *instance.Snapshot, was *instance.Instance) {
	if _, ok := now.Lookup(was.Key); !ok {
		i.firstToken.DeleteLabelValues(string(was.Role), was.Address)
		i.perOut.DeleteLabelValues(string(was.Role), was.Address)
		i.failed.DeletePartialMatch(prometheus.Labels{"role": string(was.Role), "instance": was.Address})
	}
}

// outcome is an outcome of requests, with its usual status.
type outcome struct {
	name string
	code string
}

func outcomes() []outcome {
	return []outcome{
		{relay.OutcomeOK, "200"}, {relay.OutcomeClientError, "400"}, {relay.OutcomeClientGone, "499"},
		{relay.OutcomeUnavailable, "503"}, {relay.OutcomeUpstream, "502"}, {relay.OutcomeBroken, "200"},
	}
}

// factory creates metrics and registers them.
type factory struct{ promauto.Factory }

func (f factory) counter(name, help string) prometheus.Counter {
	return f.NewCounter(prometheus.CounterOpts{Name: name, Help: help})
}

func (f factory) counters(name, help string, labels ...string) *prometheus.CounterVec {
	return f.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
}

func (f factory) latency(name, help string, bounds []float64, labels ...string) *prometheus.HistogramVec {
	return f.NewHistogramVec(prometheus.HistogramOpts{Name: name, Help: help, Buckets: bounds}, labels)
}

// The bounds, in seconds, are those of vLLM's histograms, so that both can be compared. Some histograms
// have additional lower bounds, for warm caches and for the stages of the proxy itself.

func firstTokens() []float64 {
	return []float64{.001, .005, .01, .02, .04, .06, .08, .1, .25, .5, .75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640, 2560}
}

func betweenTokens() []float64 {
	return []float64{.001, .0025, .005, .01, .025, .05, .075, .1, .15, .2, .3, .4, .5, .75, 1, 2.5, 5, 7.5, 10, 20, 40, 80}
}

// Between returns the histogram of the times between the events of an endpoint's streams.
func (m *Metrics) Between(endpoint string) relay.Observer { return m.between.WithLabelValues(endpoint) }
