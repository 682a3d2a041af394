package leg

import (
	"context"
	"errors"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/pdmesh/pdmesh/internal/forward/stage"
	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/internal/sched"
	"github.com/pdmesh/pdmesh/internal/tracing"
	"github.com/pdmesh/pdmesh/internal/upstream"
)

// Settings are the same for the legs of all requests.
type Settings struct {
	Upstream upstream.Client
	// Gone tells why nothing more can come from the instance of a pick, nil if
	// something can.
	Gone func(*sched.Assignment) error
	Log  logrus.FieldLogger
	// EngineKey is the key for the engines, "" if there is none; ClientKeys tells
	// that the proxy checks clients' keys, and therefore does not pass them on.
	EngineKey  string
	ClientKeys bool
}

// Origin is the client's request that legs are made for.
type Origin struct {
	Settings *Settings
	Client   context.Context  //nolint:containedctx // the request's own: ends every leg
	Header   http.Header      // the client's, never changed
	ID       string           // its X-Request-Id, the client's or a new one
	Model    string           // "" if the request names none
	Times    *stage.Times     // where the beginnings of legs are noted; nil: nowhere
	Trace    *tracing.Request // of the request; nil: none
	// Optional tells that engines have the route only by an option. Without it vLLM
	// answers 403 since 0.32; such a 403 says nothing of a key.
	Optional bool
	// Privileged tells whether the client's X-Vllm-Priority gets through.
	Privileged func() bool

	bodyHolders   atomic.Int32 // calls of HoldBody that are not released
	readAfterSend atomic.Bool  // an upstream client may still read a body after Send
}

// HoldBody keeps the memory of the legs' bodies from being used again until release is
// called. A leg that is sent on a goroutine of its own needs it: another leg may have
// answered before it is sent (TestConcurrentPrefillIsSentLate).
func (o *Origin) HoldBody() (release func()) {
	o.bodyHolders.Add(1)
	return func() { o.bodyHolders.Add(-1) }
}

// BodyIsFree tells that nothing reads the bodies of the legs any more, provided that
// no further leg begins.
func (o *Origin) BodyIsFree() bool { return o.bodyHolders.Load() == 0 && !o.readAfterSend.Load() }

// Wait is how long a leg may wait for the beginning of its answer.
type Wait struct {
	Limit time.Duration
	Cause error // what it ends with then
	// Silence is the limit while the instance gives no sign of life; 0 for none.
	Silence time.Duration
	// KVUntil is when the lease of its hand-over ends, zero if there is none, or
	// if it can be read more than once.
	KVUntil time.Time
	// Partner is how much longer than Limit, and than any limit of Leg.SetLimit, the
	// leg may wait while the other leg of its pair has to be done first; see
	// Leg.PartnerDone. It does not extend Silence: an instance that waits for its
	// partner still gives signs of life.
	Partner time.Duration
}

// The causes of legs that a time limit of the proxy has ended.
var (
	ErrPrefillTimeout   error = timeoutError("prefill took too long")
	ErrFirstByteTimeout error = timeoutError("no answer in time")
	ErrIdleTimeout      error = timeoutError("the answer stalled")
	errHandoverExpired        = errors.New("the lease of the hand-over ended while the instance was silent")
	errDone                   = errors.New("leg ended")
)

// ErrPartner is the cause of a leg that was ended because the other leg of its
// pair has failed.
var ErrPartner = errors.New("the other leg of the pair failed")

// ErrNotNotified is the cause of a prefill leg whose notifications have not come.
var ErrNotNotified error = timeoutError("the notifications of prefill did not come")

// timeoutError is the cause of a leg that a deadline of the proxy ended.
type timeoutError string

func (e timeoutError) Error() string { return string(e) }

// Timeout marks it as net.Error does.
func (timeoutError) Timeout() bool { return true }

// Temporary completes net.Error.
func (timeoutError) Temporary() bool { return true }

// Begin starts a leg on a picked instance. It ends when its wait is over, when the
// client leaves, or as soon as its instance is found gone, with sched.ErrGone.
func (o *Origin) Begin(a *sched.Assignment, w Wait) *Leg {
	l := o.newLeg(w)
	l.Instance, l.pick = a.Instance, a
	o.noteBegin(l)
	l.Span = o.Trace.Leg(string(l.Instance.Role), l.Instance.Address, a.Connector, l.Began)
	a.Await(l, l.Began)
	// The membership may have changed between the pick and Await.
	if err := o.Settings.Gone(a); err != nil {
		l.cancel(err)
	}
	return l
}

// noteBegin notes in the request's times when a leg has begun.
func (o *Origin) noteBegin(l *Leg) {
	switch {
	case o.Times == nil:
	case l.Instance.Role == instance.Prefill:
		o.Times.BeginPrefill(l.Began)
	default:
		o.Times.BeginDecode(l.Began)
	}
}

// newLeg starts a leg that nothing but its wait and the client ends.
func (o *Origin) newLeg(w Wait) *Leg {
	l := &Leg{origin: o, Began: time.Now(), wait: w, duration: w.Limit, limitCause: w.Cause}
	l.Context, l.cancel = context.WithCancelCause(o.Client)
	l.partner.Store(int64(w.Partner))
	l.timer = time.AfterFunc(w.Limit+w.Partner, l.expire)
	return l
}
