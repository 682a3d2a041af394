// Package forward is the data path of one request: prefill, hand-over, decode,
// stream, retry, abort.
//
//	body ─parse once─▶ pick P ─▶ prefill ─▶ hand-over ─▶ pick D ─▶ decode ─▶ client
//	                     ▲                                 ▲          │
//	                     └──────── any failure before the answer is committed
//
// Nothing reaches the client before the answer is committed: the first event
// with content, or a whole non-streamed answer. Until then every failure is
// ours to hide; afterwards a failure is an error event and a broken
// connection, never a clean end.
package forward

import (
	"errors"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/pdmesh/pdmesh/internal/connector"
	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/internal/sched"
	"github.com/pdmesh/pdmesh/internal/upstream"
)

// Picker chooses instances; see sched.Scheduler.
type Picker interface {
	Pick(r sched.Request) (*sched.Assignment, error)
	// Gone tells why nothing more can come from the instance of a pick, nil if
	// something can.
	Gone(a *sched.Assignment) error
	InFlight(k instance.Key) int64
	// Models are the names of all models that instances list, in order.
	Models() []string
}

// Recorder hears of every request once, when it has ended, and of the events
// on its way. It must not block.
type Recorder interface {
	// Done must not keep e.
	Done(e *Entry)
	// Retried: a leg in this role failed in this way and was tried again.
	Retried(role instance.Role, class Class)
	// HandoverMissing: a prefill answered without the hand-over its connector needs.
	HandoverMissing()
	// HandoverSpent: a decode leg failed in this way after it may have taken a
	// hand-over that can be used once. Prefill holds its blocks until their lease ends.
	HandoverSpent(class Class)
	// Asked: what became of an invalid request, one of AskRefused and so on.
	Asked(outcome string)
}

// Options configure a Handler. Zero durations and counts get the defaults named.
type Options struct {
	Picker   Picker
	Health   Health
	Upstream upstream.Client
	Recorder Recorder
	Log      logrus.FieldLogger

	// EngineKey is the key for the engines; ClientKeys tells that clients'
	// keys are checked by the proxy and therefore end here.
	EngineKey  string
	ClientKeys bool
	// Trace tells whether this client, which asks for that, may see how its request was
	// routed. TraceAll shows it to everybody, asked or not.
	Trace    func(*http.Request) bool
	TraceAll bool
	// Privileged tells whether this client may give its requests a priority.
	Privileged func(*http.Request) bool
	// SessionHeader names the request header whose value binds requests to the
	// same instances; "" binds none.
	SessionHeader string
	// Fallback lets a decode instance compute the prompt when no prefill
	// instance is left.
	Fallback bool

	MaxBody     int64         // bytes, default 64 MiB
	MaxBodies   int64         // bytes of all bodies at once, default no bound
	MaxAttempts int           // counted failures per request, default 4
	RetryRatio  float64       // retries allowed per request of the last 10 s, default 0.2; negative: no bound
	RetryBurst  int           // and this many on top, default 64
	BodyTimeout time.Duration // for reading the request, default 60 s
	Prefill     time.Duration // for a whole prefill, default 300 s
	FirstByte   time.Duration // until decode answers, default 60 s
	Idle        time.Duration // between two reads of an answer, default 120 s
	NonStream   time.Duration // for a non-streamed answer to begin, default 1 h
	KVBudget    time.Duration // how long a hand-over may wait, default 20 s
}

// Handler serves completions. It is safe for concurrent use.
type Handler struct {
	opts       Options
	connectors map[string]connector.Connector
	budget     *budget
	spares     spares
	bodies     bodies
	exchanges  sync.Pool // of *exchange, see recycle
	// What the upstream client can do beside, nil if it cannot.
	releases interface {
		ReleasesBody(r *upstream.Request) bool
	}
	lines interface {
		TakesLines(r *upstream.Request) bool
	}
	drafts sync.Pool    // of *draft
	asking atomic.Int64 // questions about invalid requests that are under way
}

// New builds a Handler.
func New(o Options) (*Handler, error) {
	o.setDefaults()
	h := &Handler{opts: o, connectors: map[string]connector.Connector{}}
	h.bodies.limit = o.MaxBodies
	if o.RetryRatio >= 0 {
		h.budget = newBudget(o.RetryRatio, o.RetryBurst, time.Now)
	}
	h.releases, _ = o.Upstream.(interface {
		ReleasesBody(r *upstream.Request) bool
	})
	h.lines, _ = o.Upstream.(interface {
		TakesLines(r *upstream.Request) bool
	})
	for _, name := range connector.Names() {
		c, err := connector.New(name)
		if err != nil {
			return nil, err
		}
		h.connectors[name] = c
	}
	return h, nil
}

func (o *Options) setDefaults() {
	def := func(d *time.Duration, v time.Duration) {
		if *d <= 0 {
			*d = v
		}
	}
	def(&o.BodyTimeout, time.Minute)
	def(&o.Prefill, 300*time.Second)
	def(&o.FirstByte, time.Minute)
	def(&o.Idle, 2*time.Minute)
	def(&o.KVBudget, 20*time.Second)
	def(&o.NonStream, time.Hour)
	if o.MaxBody <= 0 {
		o.MaxBody = 64 << 20
	}
	if o.MaxAttempts <= 0 {
		o.MaxAttempts = 4
	}
	if o.RetryRatio == 0 {
		o.RetryRatio = 0.2
	}
	if o.RetryBurst <= 0 {
		o.RetryBurst = 64
	}
	nobody := func(*http.Request) bool { return false }
	if o.Trace == nil {
		o.Trace = nobody
	}
	if o.Privileged == nil {
		o.Privileged = nobody
	}
}

// The ways a request can end, as in metrics and the access log.
const (
	OutcomeOK          = "ok"
	OutcomeClientError = "client_error" // the client's own mistake, by us or by the engine
	OutcomeClientGone  = "client_gone"
	OutcomeUnavailable = "unavailable" // nobody there to serve it
	OutcomeUpstream    = "upstream_error"
	OutcomeBroken      = "broken" // committed, then lost
)

// StatusClientGone is logged for a client that left before its answer.
const StatusClientGone = 499

// Entry is what is known of a request when it has ended.
type Entry struct {
	RequestID string
	Client    string
	Method    string
	Path      string
	Endpoint  string // the route, for metrics: one of a fixed few
	Model     string
	Stream    bool
	Status    int
	Outcome   string
	Prefill   string // address, "" if there was none
	Decode    string
	// Alone says why the decode instance served the request without a
	// prefill, "" if it did not.
	Alone    string
	Attempts int   // failed legs, hidden or not
	Failure  Class // of the leg whose failure the client was told of
	Revision int64
	BytesIn  int64
	BytesOut int64
	Start    time.Time
	TTFT     time.Duration // 0 if nothing was committed
	Duration time.Duration
}

// The causes of our own deadlines are errors already: each use would make one.
var (
	errPrefillTimeout   error = timeoutError("prefill took too long")
	errFirstByteTimeout error = timeoutError("no answer in time")
	errIdleTimeout      error = timeoutError("the answer stalled")
	errHandoverExpired        = errors.New("the lease of the hand-over ended while the instance was silent")
	errLegDone                = errors.New("leg ended")
)

// timeoutError is the cause of a leg that one of our own deadlines ended.
type timeoutError string

func (e timeoutError) Error() string { return string(e) }

// Timeout marks it as net.Error does.
func (timeoutError) Timeout() bool { return true }

// Temporary completes net.Error.
func (timeoutError) Temporary() bool { return true }
