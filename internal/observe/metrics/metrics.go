// Package metrics exports the proxy's metrics to Prometheus: it implements the recorder interfaces
// that other packages declare.
package metrics

import (
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"github.com/pdmesh/pdmesh/internal/forward"
	"github.com/pdmesh/pdmesh/internal/forward/bypass"
	"github.com/pdmesh/pdmesh/internal/forward/continuation"
	"github.com/pdmesh/pdmesh/internal/forward/flow"
	"github.com/pdmesh/pdmesh/internal/forward/leg"
	"github.com/pdmesh/pdmesh/internal/forward/relay"
	"github.com/pdmesh/pdmesh/internal/health"
	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/internal/observe/metrics/scraped"
	"github.com/pdmesh/pdmesh/internal/openai"
	"github.com/pdmesh/pdmesh/internal/transport/certs"
)

// Metrics counts requests. It is safe for concurrent use.
type Metrics struct {
	requests   *prometheus.CounterVec
	retries    *prometheus.CounterVec
	decodeOnly *prometheus.CounterVec
	decided    *prometheus.CounterVec
	stalls     prometheus.Counter
	missing    prometheus.Counter
	spent      *prometheus.CounterVec
	media      prometheus.Counter
	asked      *prometheus.CounterVec
	kept       prometheus.Counter
	late       *prometheus.CounterVec
	trials     *prometheus.CounterVec
	vanished   *prometheus.CounterVec

	continued, notContinued *prometheus.CounterVec
	pause                   prometheus.Histogram

	models    *models
	instances *instances

	duration, firstToken, between, stages *prometheus.HistogramVec

	known sync.Map               // from kind to *series
	usual atomic.Pointer[series] // newest kind of successful requests, tried first
}

// New registers the counters, with labels for a number of models besides "other", and the
// collectors of the process and the Go runtime. Counters with known labels start at zero, so that
// their first increase is visible.
func New(reg prometheus.Registerer, version string, models int) *Metrics {
	f := factory{promauto.With(reg)}
	m := &Metrics{
		models: newModels(f, models), instances: newInstances(f),
		requests: f.counters("pd_requests_total", "Requests that have ended, by endpoint, outcome and status.", "endpoint", "outcome", "code"),
		duration: f.latency("pd_request_duration_seconds", "Time from a request's arrival to its end.",
			[]float64{.01, .05, .1, .3, .5, .8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680}, "endpoint"),
		firstToken: f.latency("pd_time_to_first_token_seconds",
			"Time from a request's arrival to the first content of its stream; way is pair, or decode_only (without prefill).", firstTokens(), "endpoint", "way"),
		between: f.latency("pd_inter_token_seconds",
			"Time between two events of a stream, as sent to the client.", betweenTokens(), "endpoint"),
		stages: f.latency("pd_stage_seconds",
			"Time of each stage of a request, in their order: queue, retry, prefill, handover (KV transfer), decode; role is that of the instance that serves the stage.",
			[]float64{.0001, .0005, .001, .005, .01, .02, .04, .06, .08, .1, .25, .5, .75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640, 2560}, "endpoint", "stage", "role"),
		retries:      f.counters("pd_forward_retries_total", "Failed legs that were retried on another instance.", "role", "class"),
		decodeOnly:   f.counters("pd_forward_decode_only_total", "Requests that a decode instance served without a prefill, by reason.", "reason"),
		decided:      f.counters("pd_disaggregate_total", "Decisions of --disaggregate for requests, pair or decode_only, by reason.", "decision", "reason"),
		stalls:       f.counter("pd_disaggregate_stall_seconds_total", "Estimated time, in seconds summed over all running streams, that they waited while decode instances computed prompts by such a decision."),
		missing:      f.counter("pd_forward_handover_missing_total", "Prefill answers without the transfer params that their connector needs."),
		spent:        f.counters("pd_forward_handovers_spent_total", "KV transfers whose decode leg failed; prefill keeps their blocks until the lease ends.", "class"),
		media:        f.counter("pd_forward_media_total", "Requests with images, video or sound, which prefill encodes itself."),
		asked:        f.counters("pd_forward_asked_total", "Requests with an invalid body that the proxy sent to an engine for its error message, by outcome.", "outcome"),
		kept:         f.counter("pd_forward_keep_alives_total", "SSE comments and pings that the proxy sent to clients of silent streams (--sse-keep-alive-interval)."),
		late:         f.counters("pd_forward_late_errors_total", "Errors sent as an event, because a keep-alive had sent the status 200 before, by the status that they would have had.", "code"),
		trials:       f.counters("pd_trial_requests_total", "Requests of one token that the proxy sent to instances suspected or ejected for making no progress, and to their peers, by result: ok, failed, refused (4xx), cancelled.", "result"),
		continued:    f.counters("pd_streams_continued_total", "Streams that went on after their decode leg was lost (--continue-streams), by the class of the failure and by how.", "reason", "how"),
		notContinued: f.counters("pd_streams_not_continued_total", "Streams that were broken off because they could not go on after their decode leg was lost (--continue-streams), by reason.", "reason"),
		vanished:     f.counters("pd_membership_vanished_total", "Registered instances that left the membership without a drain, by role.", "role"),
	}
	m.pause = f.NewHistogram(prometheus.HistogramOpts{
		Name: "pd_stream_continue_pause_seconds", Help: "Time from the loss of a stream's decode leg until the stream went on.",
		Buckets: []float64{0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30},
	})
	for _, result := range health.TrialResults() {
		m.trials.WithLabelValues(result)
	}
	f.NewGauge(prometheus.GaugeOpts{
		Name: "pd_build_info", Help: "Always 1; the version is in the label.",
		ConstLabels: prometheus.Labels{"version": version},
	}).Set(1)
	m.atZero()
	reg.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return m
}

// Trial counts a trial request by its result, one of health.TrialResults.
func (m *Metrics) Trial(result string) { m.trials.WithLabelValues(result).Inc() }

// atZero creates the series of counters whose labels are known.
func (m *Metrics) atZero() {
	for _, k := range openai.Generating() {
		for _, o := range outcomes() {
			m.requests.WithLabelValues(k.Path(), o.name, o.code)
		}
	}
	for _, rule := range leg.Rules() {
		m.spent.WithLabelValues(string(rule.Class))
		for _, role := range instance.Roles() {
			m.retries.WithLabelValues(string(role), string(rule.Class))
		}
	}
	for _, reason := range continuation.Reasons() {
		m.notContinued.WithLabelValues(reason)
	}
	for _, how := range continuation.Hows() {
		m.continued.WithLabelValues(string(leg.BrokeOff), how)
	}
	for _, reason := range bypass.Reasons() {
		m.decodeOnly.WithLabelValues(reason.Name)
	}
	for _, outcome := range flow.AskOutcomes() {
		m.asked.WithLabelValues(outcome)
	}
	for _, role := range instance.Roles() {
		m.vanished.WithLabelValues(string(role))
	}
}

// Follow follows the membership from the snapshot last, nil at first, to now.
func (m *Metrics) Follow(last, now *instance.Snapshot) {
	m.models.follow(now)
	m.instances.snapshot.Store(now)
	instance.Changes(last, now, func(was, is *instance.Instance) {
		if is == nil && was.CanVanish() {
			m.vanished.WithLabelValues(string(was.Role)).Inc()
		}
		if is != nil {
			for _, model := range is.Record.Models {
				m.models.admit(model, false) // its series begin at zero
			}
		}
		if was != nil {
			m.instances.changed(now, was)
		}
	})
}

// kind has the labels by which requests are counted.
type kind struct {
	endpoint, outcome string
	status            int
	decodeOnly        bool // no prefill instance was involved
}

// series are the counters of one kind, looked up once.
type series struct {
	of                   kind
	requests             prometheus.Counter
	duration, firstToken prometheus.Observer

	queue, retry, prefill, handover, decode prometheus.Observer
}

// of returns the counters of a kind. There are few kinds.
func (m *Metrics) of(k kind) *series {
	if s := m.usual.Load(); s != nil && s.of == k {
		return s
	}
	one, known := m.known.Load(k)
	if !known {
		one, _ = m.known.LoadOrStore(k, m.newSeries(k))
	}
	s, _ := one.(*series)
	if !known && k.outcome == relay.OutcomeOK {
		m.usual.Store(s)
	}
	return s
}

func (m *Metrics) newSeries(k kind) *series {
	way, first := "pair", string(instance.Prefill)
	if k.decodeOnly {
		way, first = "decode_only", string(instance.Decode)
	}
	stage := func(name, role string) prometheus.Observer { return m.stages.WithLabelValues(k.endpoint, name, role) }
	return &series{
		of:         k,
		requests:   m.requests.WithLabelValues(k.endpoint, k.outcome, strconv.Itoa(k.status)),
		duration:   m.duration.WithLabelValues(k.endpoint),
		firstToken: m.firstToken.WithLabelValues(k.endpoint, way),
		queue:      stage("queue", first),
		retry:      stage("retry", first),
		prefill:    stage("prefill", first),
		handover:   stage("handover", string(instance.Decode)),
		decode:     stage("decode", string(instance.Decode)),
	}
}

// Done counts one finished request.
func (m *Metrics) Done(e *forward.Entry) {
	prefill, _ := e.Began()
	s := m.of(kind{e.Endpoint, e.Outcome, e.Status, prefill == ""})
	s.requests.Inc()
	s.duration.Observe(e.Duration.Seconds())
	m.models.done(e)
	m.instances.done(e)
	if e.TTFT > 0 && (prefill != "" || e.DecodeOnly != "" || e.BeganDecode != "") {
		s.passed(e)
	}
	if e.DecodeOnly != "" {
		m.decodeOnly.WithLabelValues(e.DecodeOnly).Inc()
	}
	if e.KeepAlives > 0 {
		m.kept.Add(float64(e.KeepAlives))
	}
	if e.Late > 0 {
		m.late.WithLabelValues(strconv.Itoa(e.Late)).Inc()
	}
}

// passed counts the first token and the stages of a request whose response has started.
func (s *series) passed(e *forward.Entry) {
	if e.FirstToken > 0 {
		s.firstToken.Observe(e.FirstToken.Seconds())
	}
	s.queue.Observe(e.Stages.Queue.Seconds())
	if e.Failed > 0 {
		s.retry.Observe(e.Stages.Retry.Seconds())
	}
	if e.Stages.Prefill > 0 {
		s.prefill.Observe(e.Stages.Prefill.Seconds())
	}
	if e.Stages.Handover > 0 {
		s.handover.Observe(e.Stages.Handover.Seconds())
	}
	if e.Outcome == relay.OutcomeOK {
		s.decode.Observe(e.Stages.Decode.Seconds())
	}
}

// Retried counts a leg that was retried.
func (m *Metrics) Retried(role instance.Role, class leg.Class) {
	m.retries.WithLabelValues(string(role), string(class)).Inc()
}

// Failed counts a failed leg of an instance that is still a member.
func (m *Metrics) Failed(k instance.Key, class leg.Class) {
	if m.instances.member(k) {
		m.instances.failed.WithLabelValues(string(k.Role), k.Address, string(class)).Inc()
	}
}

// Handed counts a prefill response without transfer params.
func (m *Metrics) Handed(_ *instance.Instance, something bool) {
	if !something {
		m.missing.Inc()
	}
}

// Disaggregated counts a decision of --disaggregate.
func (m *Metrics) Disaggregated(decodeOnly bool, reason string, stall float64) {
	decision := "pair"
	if decodeOnly {
		decision = "decode_only"
	}
	m.decided.WithLabelValues(decision, reason).Inc()
	m.stalls.Add(stall)
}

// TransferSpent counts a KV transfer whose decode leg failed.
func (m *Metrics) TransferSpent(class leg.Class) { m.spent.WithLabelValues(string(class)).Inc() }

// Continued counts a stream that went on.
func (m *Metrics) Continued(class leg.Class, how string, pause time.Duration) {
	m.continued.WithLabelValues(string(class), how).Inc()
	m.pause.Observe(pause.Seconds())
}

// NotContinued counts a stream that was broken off.
func (m *Metrics) NotContinued(reason string) { m.notContinued.WithLabelValues(reason).Inc() }

// Media counts a request with images, video or audio.
func (m *Metrics) Media() { m.media.Inc() }

// Asked counts an invalid request by the outcome of asking an engine for its error.
func (m *Metrics) Asked(outcome string) { m.asked.WithLabelValues(outcome).Inc() }

// Traces returns the number of spans that did not reach the collector.
type Traces func() uint64

// Register registers the metric.
func (t Traces) Register(reg prometheus.Registerer) {
	reg.MustRegister(prometheus.NewCounterFunc(prometheus.CounterOpts{
		Name: "pd_trace_spans_dropped_total", Help: "Spans that were dropped: their collector was too slow, or did not accept them.",
	}, func() float64 { return float64(t()) }))
}

// Bodies returns the memory of request bodies at scrape time: the bytes in use, their limit, and the
// number of requests that were refused because of it.
type Bodies func() (held, limit, refused int64)

// Register registers the metrics.
func (b Bodies) Register(reg prometheus.Registerer) {
	reg.MustRegister(scraped.Collector(func(emit scraped.Emit) {
		held, limit, refused := b()
		emit("pd_request_bodies_bytes", float64(held))
		emit("pd_request_bodies_limit_bytes", float64(limit))
		emit("pd_request_bodies_refused_total", float64(refused))
	},
		scraped.New("pd_request_bodies_bytes", "Memory of the request bodies that the proxy reads or may still send, and of large answers that it holds back."),
		scraped.New("pd_request_bodies_limit_bytes", "Limit for this memory (--max-bodies-memory)."),
		scraped.New("pd_request_bodies_refused_total", "Requests that were refused, or lost their answer, because this memory was full."),
	))
}

// TLS is the source of the metrics about certificates, read at scrape time.
type TLS struct {
	Sources func() []certs.Status
	Refused func() map[certs.Reason]int64 // clients' handshakes
}

// Register registers the metrics.
func (t TLS) Register(reg prometheus.Registerer) {
	reg.MustRegister(scraped.Collector(t.read,
		scraped.New("pd_tls_certificate_expiry_timestamp_seconds", "Expiry of the active certificate or its CA certificate, whichever ends first; use is listener, engines, etcd or etcd_listener.", "use"),
		scraped.New("pd_tls_files_rejected", "1 while changed certificate files are rejected and the previous certificate stays active.", "use"),
		scraped.New("pd_tls_reloads_total", "Times that changed certificate files were loaded.", "use"),
		scraped.New("pd_tls_handshakes_failed_total", "TLS handshakes of clients that failed, by reason.", "reason"),
	))
}

func (t TLS) read(emit scraped.Emit) {
	for _, s := range t.Sources() {
		if !s.NotAfter.IsZero() {
			emit("pd_tls_certificate_expiry_timestamp_seconds", float64(s.NotAfter.Unix()), s.Use)
		}
		emit("pd_tls_files_rejected", scraped.Truth(s.Problem != ""), s.Use)
		emit("pd_tls_reloads_total", float64(s.Reloads), s.Use)
	}
	for reason, n := range t.Refused() {
		emit("pd_tls_handshakes_failed_total", float64(n), string(reason))
	}
}
