// Package forward is the data path of one request: prefill, KV transfer, decode,
// stream, retry, abort.
//
//	client ─▶ call ─▶ flow ─▶ leg ─▶ engine
//	            │      └────▶ relay ─▶ client
//	            └ scratch: the bytes
//
// Each part has a package: flow has the order of the legs and what is left to try, leg one
// request to one engine, relay one answer to one client, scratch the buffers, budget the
// retries of the whole proxy. This package connects them and reports the outcome of
// the request.
//
// Nothing of an answer reaches the client before it is committed: the first event with content,
// or a whole non-streamed answer. Only keep-alives may precede it (Options.KeepAlive). Until then a failure can be retried, and the client does
// not see it. Afterwards a failure is an error event and a broken connection, never a
// clean end.
package forward

import (
	"cmp"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/pdmesh/pdmesh/internal/forward/flow"
	"github.com/pdmesh/pdmesh/internal/forward/leg"
	"github.com/pdmesh/pdmesh/internal/forward/modelroute"
	"github.com/pdmesh/pdmesh/internal/forward/relay"
	"github.com/pdmesh/pdmesh/internal/forward/retrybudget"
	"github.com/pdmesh/pdmesh/internal/forward/scratch"
	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/internal/observe/tracing"
	"github.com/pdmesh/pdmesh/internal/openai"
	"github.com/pdmesh/pdmesh/internal/sched/admission"
	"github.com/pdmesh/pdmesh/internal/sched/estimate"
	"github.com/pdmesh/pdmesh/internal/sched/keylimit"
)

// Client is one client's connection; see relay.Client.
type Client = relay.Client

// HandlerFunc answers one request of one client.
type HandlerFunc func(c Client, r *http.Request)

// Recorder receives every request once, when it has ended, and the events before
// that. It must not block.
type Recorder interface {
	flow.Recorder
	// Done is called when the request has ended. It must not keep e.
	Done(e *Entry)
}

// Options configure a Handler. Zero durations and counts get the defaults named.
type Options struct {
	flow.Config
	// Settings are those of legs, Busy with a default of 30 min. New sets Removed and Log.
	leg.Settings
	// Routes are the model routes; nil: there are none.
	Routes   *modelroute.Routes
	Recorder Recorder
	Tracer   *tracing.Tracer // nil: off
	// EventGaps returns the recorder of the times between the events of an endpoint's
	// streams; nil if they are not recorded.
	EventGaps func(endpoint string) relay.Observer

	// Trace reports whether this client may see how its request was routed, if it requests
	// that. TraceAll shows it to all clients, even without a request for it.
	Trace    func(*http.Request) bool
	TraceAll bool
	// Privileged reports whether this client may set the priority of its requests.
	Privileged func(*http.Request) bool
	// Ranked reports whether this client may choose its data-parallel rank.
	Ranked func(*http.Request) bool
	// KeyName names the client's key for the log, "" for none; nil: none has a name.
	KeyName func(*http.Request) string
	// Keys applies the limits of clients' keys and counts their use; nil: there are none.
	Keys *keylimit.Table
	// Sessions finds the session of a request; the zero value finds none.
	Sessions Sessions
	// Class returns the class of a client's requests and the highest that it may ask for; nil:
	// Default, and any.
	Class func(*http.Request) (is, highest admission.Class)

	MaxBody     int64         // bytes, default 64 MiB
	MaxBodies   int64         // bytes of all bodies at once, default no bound
	RetryRatio  float64       // retries allowed per request of the last 10 s, default 0.2; negative: no bound
	RetryBurst  int           // and this many on top, default 64
	BodyTimeout time.Duration // for reading each 256 KiB of the request, default 60 s
	// KeepAlive is how long a stream may send nothing until the proxy sends a comment or a ping; 0: never.
	KeepAlive time.Duration
}

// Handler serves completions. It is safe for concurrent use.
type Handler struct {
	opts   Options
	flow   flow.Settings
	legs   leg.Settings
	bodies *scratch.Bodies

	requests atomic.Int64 // that are being answered
}

// New builds a Handler.
func New(o Options) (*Handler, error) {
	o.setDefaults()
	h := &Handler{
		opts:   o,
		bodies: scratch.NewBodies(o.MaxBodies),
		legs:   o.Settings,
		flow:   flow.Settings{Config: o.Config, Recorder: o.Recorder},
	}
	h.legs.Removed, h.legs.Available, h.legs.Log = o.Picker.Removed, o.Health.Available, o.Config.Log
	h.flow.Memory = h.bodies
	if o.RetryRatio >= 0 {
		h.flow.Budget = retrybudget.New(o.RetryRatio, o.RetryBurst, time.Now)
	}
	return h, h.flow.LoadDialects()
}

// Completion serves one endpoint whose answers are generated.
func (h *Handler) Completion(kind openai.Kind) HandlerFunc {
	return h.serve(kind.Path(), kind, func(c *call) { c.completion(kind) })
}

// Passthrough serves an endpoint that a single instance answers: a decode
// instance, or a prefill instance if there is none. reason is why no prefill
// computes the prompt, "" if nothing is generated from one.
func (h *Handler) Passthrough(endpoint, reason string) HandlerFunc {
	return h.serve(endpoint, openai.Other, func(c *call) { c.passThrough(reason) })
}

// Stored serves an endpoint about one stored response. id returns the response's id.
func (h *Handler) Stored(endpoint string, id func(*http.Request) string) HandlerFunc {
	return h.serve(endpoint, openai.Other, func(c *call) {
		c.limit.engines = true
		c.flow.Stored(id(c.r), c.r.Method, c.target())
	})
}

// Form is Passthrough for an endpoint whose requests are forms with a file in them.
func (h *Handler) Form(endpoint, reason string) HandlerFunc {
	return h.serve(endpoint, openai.Other, func(c *call) { c.passThroughForm(reason) })
}

// PassthroughGet is Passthrough for a route of GET, whose requests have no body.
func (h *Handler) PassthroughGet(endpoint string) HandlerFunc {
	return h.serve(endpoint, openai.Other, (*call).passThroughNoBody)
}

// Requests reports how many requests are being answered now.
func (h *Handler) Requests() int64 { return h.requests.Load() }

// serve makes a call of each request, and ends it.
func (h *Handler) serve(endpoint string, kind openai.Kind, answer func(*call)) HandlerFunc {
	var between relay.Observer
	if h.opts.EventGaps != nil && kind != openai.Other {
		between = h.opts.EventGaps(endpoint)
	}
	errorKind := openai.ErrorKindOf(endpoint)
	return func(client Client, r *http.Request) {
		h.requests.Add(1)
		defer h.requests.Add(-1)
		c := h.newCall(client, r, endpoint, kind, between)
		c.answer.Errors = errorKind
		defer c.endUnfinished() // when answer panics
		answer(c)
		c.finish()
	}
}

// Unnotified returns the prefill instances that are bypassed because their notifications do
// not arrive, with the addresses at which they are expected.
func (h *Handler) Unnotified() map[instance.Key]string { return h.flow.Unnotified() }

// BodyMemory reports how many bytes of request bodies are held, how many may be (0: no
// bound), and how many requests were refused for that bound.
func (h *Handler) BodyMemory() (held, limit, refused int64) { return h.bodies.Memory() }

func (o *Options) setDefaults() {
	setDefault(&o.BodyTimeout, time.Minute)
	setDefault(&o.Prefill, 300*time.Second)
	setDefault(&o.FirstByte, time.Minute)
	setDefault(&o.Idle, 2*time.Minute)
	setDefault(&o.Busy, 30*time.Minute)
	setDefault(&o.KVBudget, 20*time.Second)
	setDefault(&o.Notified, 30*time.Second)
	setDefault(&o.NonStream, time.Hour)
	setDefault(&o.MaxBody, 64<<20)
	setDefault(&o.MaxAttempts, 4)
	setDefault(&o.RetryBurst, 64)
	o.RetryRatio = cmp.Or(o.RetryRatio, 0.2) // a negative one has a meaning
	if o.Disaggregate != nil && o.Estimator == nil {
		o.Estimator = new(estimate.Estimator)
	}
	for _, may := range []*func(*http.Request) bool{&o.Trace, &o.Privileged, &o.Ranked} {
		if *may == nil {
			*may = func(*http.Request) bool { return false }
		}
	}
	if o.Class == nil {
		o.Class = func(*http.Request) (is, highest admission.Class) { return admission.Default, admission.Interactive }
	}
	if o.KeyName == nil {
		o.KeyName = func(*http.Request) string { return "" }
	}
}

// setDefault replaces a setting that is not positive.
func setDefault[T int | int64 | time.Duration](setting *T, by T) {
	if *setting <= 0 {
		*setting = by
	}
}
