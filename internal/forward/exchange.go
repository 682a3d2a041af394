package forward

import (
	"context"
	"errors"
	"math/rand/v2"
	"net/http"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/pdmesh/pdmesh/internal/connector"
	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/internal/lifetime"
	"github.com/pdmesh/pdmesh/internal/openai"
	"github.com/pdmesh/pdmesh/internal/sched"
)

// exchange is one client request on its way. It belongs to one goroutine.
type exchange struct {
	h     *Handler
	w     http.ResponseWriter
	lines lineWriter // w, nil if it is none
	r     *http.Request
	ctx   context.Context //nolint:containedctx // the client's, for the life of the request
	entry Entry
	model string
	// ownKey tells that the engines saw our key, or none because we have none.
	ownKey bool
	// broken tells that the client's connection must be broken, not ended.
	broken bool

	tried byRole[[]instance.Key]
	again byRole[bool] // everybody in the role was tried once
	// silent is how long decode legs waited that were sent again because their
	// hand-over had run out.
	silent time.Duration
	last   *failure
	// counted are the failures that count against MaxAttempts.
	counted int
	// suspects failed this request; they are blamed when another serves it.
	suspects []suspect

	// prefilled is the prefill instance's answer: it knows how many tokens of
	// the prompt were cached.
	prefilled     []byte
	now           time.Time // the last time that was looked at: not before anything that was waited for since
	wrote         time.Time // when something was last sent to the client
	writeDeadline time.Time

	header   http.Header // of the legs with headerID, nil if they have lines alone
	headerID string
	draft    *draft // nil if it is not needed yet, or no longer

	req    *openai.Request // nil once no further leg can come
	pooled *[]byte         // where its body was read into, nil if that is not pooled
	held   int64           // bytes of it, as counted in Handler.bodies
	lent   bool            // an upstream client may read the body after Do

	legs     int // of room that are taken
	room     [2]leg
	deadline deadline // of the first leg
	kv       handed   // what the last prefill left

	// The one value that each of these headers has.
	shownID, length, engineName [1]string
	spareID                     string // the first engineID
	ids                         idRoom
	memo                        *memo // what is known of the client's header, nil if nothing is

	running   atomic.Pointer[leg] // the leg that the client's leaving ends
	watch     lifetime.Watch      // for that
	watched   bool                // from the first leg on
	unwatched bool                // the watch was stopped in time
	apart     bool                // there were legs that are not in room

	kept
}

// byRole holds one value for each role.
type byRole[T any] struct{ prefill, decode T }

func (b *byRole[T]) of(r instance.Role) *T {
	if r == instance.Prefill {
		return &b.prefill
	}
	return &b.decode
}

type suspect struct {
	in    *instance.Instance
	class Class
}

// Completion serves one completion endpoint.
func (h *Handler) Completion(kind openai.Kind) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		x := h.newExchange(w, r, kind.Path())
		x.completion(kind)
		x.finish()
	}
}

func (h *Handler) newExchange(w http.ResponseWriter, r *http.Request, endpoint string) *exchange {
	x, _ := h.exchanges.Get().(*exchange)
	if x == nil {
		x = new(exchange)
	}
	x.h, x.w, x.r, x.ctx = h, w, r, r.Context()
	x.entry = Entry{
		Client: r.RemoteAddr,
		Method: r.Method, Path: r.URL.Path, Endpoint: endpoint, Start: time.Now(),
	}
	if x.memo = x.remember(); x.memo != nil {
		x.entry.RequestID = x.memo.id
	} else {
		x.entry.RequestID = clientsID(r.Header)
	}
	x.lines, _ = w.(lineWriter)
	if x.entry.RequestID == "" {
		room := &x.ids
		if x.lines == nil { // the standard library's server holds on to the header
			room = new(idRoom)
		}
		x.entry.RequestID, x.spareID = room.make()
	}
	if x.lines == nil {
		x.showID() // whatever becomes of the request
	}
	x.now = x.entry.Start
	h.budget.request(x.now)
	return x
}

// finish reports the request, once, and breaks the client's connection where
// a clean end would be a lie.
func (x *exchange) finish() {
	x.unwatched = x.watch.Stop()
	x.dropBody()
	x.entry.Duration = time.Since(x.entry.Start)
	x.h.opts.Recorder.Done(&x.entry)
	if x.broken {
		panic(http.ErrAbortHandler)
	}
	x.recycle()
}

func (x *exchange) completion(kind openai.Kind) {
	body, ok := x.readBody()
	if !ok {
		return
	}
	req := &x.borrow().request
	err := req.Parse(kind, body)
	x.model, x.entry.Model, x.entry.Stream = req.Model, req.Model, req.Stream
	if err != nil {
		x.invalid(body, err)
		return
	}
	req.KeepPriority = req.Raw(openai.FieldPriority) != nil && x.h.opts.Privileged(x.r)
	x.req = req
	c := &completion{x}
	c.run()
}

func tooLarge(limit int64) *openai.Error {
	return &openai.Error{Status: http.StatusRequestEntityTooLarge, Type: openai.TypeTooLarge,
		Message: "the request body is larger than " + strconv.FormatInt(limit, 10) + " bytes (--max-body-bytes)"}
}

// refuse answers an error of ours; anything that is not an *openai.Error is a
// bug and says so.
func (x *exchange) refuse(err error) {
	var e *openai.Error
	if !errors.As(err, &e) {
		e = &openai.Error{Status: http.StatusInternalServerError, Type: openai.TypeInternal, Message: err.Error()}
	}
	x.entry.Status = e.Status
	switch {
	case e.Status < 500:
		x.entry.Outcome = OutcomeClientError
	case e.Status == http.StatusServiceUnavailable:
		x.entry.Outcome = OutcomeUnavailable
	default:
		x.entry.Outcome = OutcomeUpstream
	}
	x.proxyHeader()
	openai.WriteError(x.w, e)
}

func (x *exchange) gone() {
	x.entry.Status, x.entry.Outcome = StatusClientGone, OutcomeClientGone
	x.broken = true // whatever half-open client there is shall not read a clean end
}

// tell gives the client the answer of the last failure.
func (x *exchange) tell(f *failure) {
	if f.class == ClientGone || x.ctx.Err() != nil {
		x.gone()
		return
	}
	x.entry.Failure = f.class
	if f.answer.own != nil {
		x.refuse(f.answer.own)
		return
	}
	x.entry.Status = f.answer.status
	x.entry.Outcome = OutcomeUpstream
	if f.answer.status < 500 {
		x.entry.Outcome = OutcomeClientError
	}
	x.copyAnswerHeader(f.answer.header, int64(len(f.answer.body)))
	x.w.WriteHeader(f.answer.status)
	n, _ := x.w.Write(f.answer.body) // a client that left needs no error
	x.entry.BytesOut += int64(n)
}

// note books a failed leg. It tells whether another try is allowed; if not,
// x.last holds what to tell the client.
func (x *exchange) note(in *instance.Instance, f *failure) bool {
	x.last = f
	x.entry.Attempts++
	x.now = time.Now()
	if f.class != HandoverExpired { // it is the hand-over that will not do
		tried := x.tried.of(in.Role)
		*tried = append(*tried, in.Key)
	}
	switch f.rule.blame {
	case blameEject:
		x.h.opts.Health.Eject(in, "cannot connect: "+f.err.Error())
	case blameStrike:
		x.suspects = append(x.suspects, suspect{in, f.class})
	case blameNobody, blameConfig:
	}
	if !f.rule.retry {
		return false
	}
	if !f.rule.free {
		if x.counted++; x.counted >= x.h.opts.MaxAttempts {
			return false
		}
		if !x.h.budget.take(x.h.opts.Picker.InFlight(in.Key)) {
			f.answer = ours(budgetSpent())
			return false
		}
	}
	x.h.opts.Recorder.Retried(in.Role, f.class)
	x.h.opts.Log.WithError(f.err).WithField("request_id", x.entry.RequestID).Debug("leg failed, trying another instance")
	return true
}

// served tells the health of the fleet that an instance did its part, and
// with that who failed the same request before.
func (x *exchange) served(in *instance.Instance) {
	x.h.opts.Health.Success(in)
	rest := x.suspects[:0]
	for _, s := range x.suspects {
		if s.in.Role != in.Role || s.in.Key == in.Key {
			rest = append(rest, s)
			continue
		}
		x.h.opts.Health.Strike(s.in, string(s.class))
	}
	x.suspects = rest
}

// pick chooses an instance that this request has not tried. When every one
// has been, those may be tried once more after a short wait, unless nothing
// but refused connections came back: a single instance that broke one
// connection can still serve.
func (x *exchange) pick(role instance.Role, partner *sched.Assignment) (*sched.Assignment, error) {
	req := sched.Request{Role: role, Model: x.model, Partner: partner, Session: x.session(), Tried: *x.tried.of(role)}
	a, err := x.h.opts.Picker.Pick(req)
	if err == nil || !errors.Is(err, sched.ErrNone) || len(req.Tried) == 0 {
		return a, err
	}
	if *x.again.of(role) || !x.mayAskAgain() {
		return nil, err
	}
	*x.again.of(role) = true
	*x.tried.of(role) = nil
	wait := time.NewTimer(secondRoundWait/2 + rand.N(secondRoundWait))
	defer wait.Stop()
	select {
	case <-x.ctx.Done():
		return nil, x.ctx.Err()
	case <-wait.C:
	}
	x.now = time.Now()
	req.Tried = nil
	return x.h.opts.Picker.Pick(req)
}

// mayAskAgain tells whether instances that failed may be tried once more. Not if all
// that came back were refused connections, and not after a limit of ours: a request
// that has waited to its limit does not wait for the same instances again. A
// connection that did not come about in time is no refusal.
func (x *exchange) mayAskAgain() bool {
	if x.last != nil && x.last.class == ConnectTimeout {
		return true
	}
	return x.counted > 0 && (x.last == nil || !x.last.class.timedOut())
}

// session is what the client calls its session, if the proxy binds sessions.
func (x *exchange) session() string {
	if x.h.opts.SessionHeader == "" {
		return ""
	}
	return x.r.Header.Get(x.h.opts.SessionHeader)
}

const secondRoundWait = 50 * time.Millisecond

// engineID is the request id that the engines see: the client's, and a nonce
// of this attempt, the same on both legs of a pair.
func (x *exchange) engineID() string {
	if id := x.spareID; id != "" {
		x.spareID = ""
		return id
	}
	id := make([]byte, 0, maxRequestID+len("-01234567"))
	return string(appendNonce(append(id, x.entry.RequestID...)))
}

func (x *exchange) dialect(a *sched.Assignment) connector.Connector {
	return x.h.connectors[a.Connector]
}
