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
	"github.com/pdmesh/pdmesh/internal/observe/tracing"
	"github.com/pdmesh/pdmesh/internal/sched"
	"github.com/pdmesh/pdmesh/internal/transport/upstream"
)

// Settings are the same for the legs of all requests.
type Settings struct {
	Upstream upstream.Client
	// Removed returns why the instance of a pick cannot answer any more, nil if it can.
	Removed func(*sched.Assignment) error
	// Available reports whether an instance is neither ejected nor suspended.
	Available func(instance.Key) bool
	// Progress extends the limits of legs whose engines are busy with other work; nil extends none.
	Progress Progress
	Busy     time.Duration // longest silence of a leg whose engine makes progress
	Connect  time.Duration // limit of Upstream for a connection
	Log      logrus.FieldLogger
	// EngineKey is the key for the engines, "" if there is none. ClientKeys reports whether
	// the proxy checks clients' keys, and therefore does not pass them on.
	EngineKey  string
	ClientKeys bool
}

// Origin is the client's request for which legs are made.
type Origin struct {
	Settings *Settings
	Client   context.Context  //nolint:containedctx // the request's own: ends every leg
	Header   http.Header      // the client's, never changed
	ID       string           // its X-Request-Id, the client's or a new one
	Model    string           // "" if the request names none
	Times    *stage.Times     // records the starts of legs; may be nil
	Trace    *tracing.Request // of the request; nil: none
	// Optional reports whether engines have the route only with an option. Without it, vLLM
	// answers 403 since 0.32; such a 403 is not about a key.
	Optional bool
	// Privileged reports whether the client's X-Vllm-Priority is passed on.
	Privileged func() bool

	bodyHolders   atomic.Int32 // calls of HoldBody that are not released
	readAfterSend atomic.Bool  // an upstream client may still read a body after Send
}

// HoldBody keeps the memory of the legs' bodies from being reused until release is called.
// A leg that is sent in another goroutine needs it: another leg may have answered before it
// is sent (TestConcurrentPrefill_SentLate).
func (o *Origin) HoldBody() (release func()) {
	o.bodyHolders.Add(1)
	return func() { o.bodyHolders.Add(-1) }
}

// BodyIsFree reports whether nothing reads the bodies of the legs any more, provided that
// no further leg begins.
func (o *Origin) BodyIsFree() bool { return o.bodyHolders.Load() == 0 && !o.readAfterSend.Load() }

// Wait holds the limits of a leg that waits for its answer.
type Wait struct {
	Limit Limit // until the answer begins; see Leg.SetLimit for the limits after that
	// Silence is the limit while the instance answers neither legs nor probes; zero: no limit.
	Silence Limit
	// Streamed reports whether the first content of the answer is visible when it arrives: the
	// answer is a stream, or that of prefill, which is one token.
	Streamed bool
	// Patient keeps the leg from being ended because later legs have overtaken it.
	Patient bool
	// KVUntil is the end of the lease of the KV cache that decode must read; zero if there is
	// none, or if it can be read more than once. KVLimit is the limit that determines it.
	// KVRenews reports whether the engine renews the lease while it makes progress.
	KVUntil  time.Time
	KVLimit  Limit
	KVRenews bool
	// Partner reports whether the other leg of the pair must be done first: until
	// Leg.PartnerDone, neither Limit nor a limit of Leg.SetLimit ends the leg. The other leg
	// has its own limits, and Silence still applies.
	Partner bool
}

var (
	errDone      = errors.New("leg ended")
	errOvertaken = errors.New("the request is stuck in its instance")
	// errNeedsPrefill is the cause of a failure without a leg.
	errNeedsPrefill = errors.New("the instance cannot answer correctly without a prefill")
)

// ErrPartner is the cause of a leg that was ended because the other leg of its
// pair has failed.
var ErrPartner = errors.New("the other leg of the pair failed")

// ErrSource is the cause of a decode leg whose prefill instance was removed: a new
// incarnation may have written other data to the blocks that decode reads.
var ErrSource = errors.New("the instance whose KV cache decode reads was removed")

// ErrNotNotified is the cause of a prefill leg whose notifications cannot be received.
var ErrNotNotified = errors.New("the notifications of prefill did not arrive")

// Begin starts a leg on a picked instance. The leg ends when its wait is over, when the
// client leaves, or as soon as its instance is known to be removed, with sched.ErrRemoved.
func (o *Origin) Begin(a *sched.Assignment, w Wait) *Leg {
	l := o.newLeg(a.Instance, a, w)
	o.noteBegin(l)
	l.Span = o.Trace.Leg(string(l.Instance.Role), l.Instance.Address, a.Connector, l.Began)
	a.Await(l, l.Began)
	// The membership may have changed between the pick and Await.
	if err := o.Settings.Removed(a); err != nil {
		l.cancel(err)
	}
	return l
}

// noteBegin records in the request's times when a leg has begun.
func (o *Origin) noteBegin(l *Leg) {
	switch {
	case o.Times == nil:
	case l.Instance.Role == instance.Prefill:
		o.Times.BeginPrefill(l.Began)
	default:
		o.Times.BeginDecode(l.Began)
	}
}

// newLeg starts a leg that only its wait and the client can end.
func (o *Origin) newLeg(in *instance.Instance, pick *sched.Assignment, w Wait) *Leg {
	l := &Leg{
		Instance: in, pick: pick, origin: o, Began: time.Now(), wait: w,
		limit: w.Limit, armed: w.Limit.After, waitsForPartner: w.Partner, kvUntil: w.KVUntil,
	}
	l.Context, l.cancel = context.WithCancelCause(o.Client)
	l.mu.Lock() // a timer may fire at once
	defer l.mu.Unlock()
	l.due, l.timer = l.Began.Add(w.Limit.After), time.AfterFunc(w.Limit.After, l.expire)
	if !w.KVUntil.IsZero() {
		l.lease = time.AfterFunc(w.KVUntil.Sub(l.Began), l.leaseEnded)
	}
	return l
}
