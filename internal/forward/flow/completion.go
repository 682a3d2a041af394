package flow

import (
	"errors"
	"net/http"
	"slices"
	"time"

	"github.com/pdmesh/pdmesh/internal/alone"
	"github.com/pdmesh/pdmesh/internal/connector"
	"github.com/pdmesh/pdmesh/internal/forward/leg"
	"github.com/pdmesh/pdmesh/internal/forward/relay"
	"github.com/pdmesh/pdmesh/internal/forward/stage"
	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/internal/openai"
	"github.com/pdmesh/pdmesh/internal/sched"

	"github.com/pdmesh/pdmesh/internal/openai/request"
	"github.com/pdmesh/pdmesh/internal/openai/response"
	"github.com/pdmesh/pdmesh/internal/openai/sse"
)

// maxPrefillAnswer bounds what a prefill instance may answer. Block ids of a
// prompt of a million tokens take well under a megabyte.
const maxPrefillAnswer = 16 << 20

// completion is a request that goes through prefill and decode.
type completion struct {
	*Request
	s   *Settings
	req *request.Request // nil once no further leg can come
	// kind and cutReason are those of req: a prefill leg of a concurrent pair may
	// outlive it.
	kind      openai.Kind
	cutReason string
	usage     relay.Usage
	// mixed is why a prefill instance found no decode instance to go with it, "" if
	// all did.
	mixed string
	// lonely are the kinds of prefill instances that found none.
	lonely []kind
	// silent is how long decode legs waited that were sent again because their
	// hand-over had run out.
	silent time.Duration
	media  bool // images, video or sound: bytes of the body tell nothing of its tokens
}

// kind of a prefill instance, by which it is paired.
type kind struct {
	connector, build string
	blocks           int
}

func kindOf(a *sched.Assignment) kind { return kind{a.Connector, a.Build, a.Blocks} }

// Complete answers a completion.
func (r *Request) Complete(req *request.Request) {
	var room [4][]byte
	head, prompt := req.Reading(room[:])
	media := req.Media()
	r.begin(sched.Request{Prompt: prompt, Head: head, TokensTell: !media && req.TokensTell(), Length: len(req.Body)})
	if media {
		r.Settings.Recorder.Media()
	}
	c := &completion{Request: r, s: r.Settings, req: req, kind: req.Kind, cutReason: req.CutReason, media: media, usage: relay.Usage{Kind: req.Kind}}
	c.run()
}

// run tries pairs until one has answered. Each pair runs in the flow of its dialect.
func (c *completion) run() {
	switch c.req.Bypass {
	case "":
	case alone.StoredResponse:
		c.goOn(c.req.PreviousResponse())
		return
	default:
		c.alone(c.req.Bypass)
		return
	}
	for !c.attempt() {
	}
}

// attempt tries one pair. done tells that the request has been answered; if not, another
// pair is due.
func (c *completion) attempt() (done bool) {
	c.Route.Alone = "" // an attempt before may have had a reason
	p, err := c.pickPrefill()
	if err != nil {
		c.withoutPrefill(err)
		return true
	}
	defer p.Done()
	if slices.Contains(c.lonely, kindOf(p)) {
		c.attempts.pass(p.Instance) // it would compute the prompt for nobody
		return false
	}
	d := c.s.dialects[p.Connector]
	if why := c.unfit(d, connector.Pair{Prefill: p.Instance}); why != "" {
		p.Done()
		c.alone(why)
		return true
	}
	if c.better(p, d) {
		return true
	}
	p.Confirm()
	c.Route.took(p)
	switch d.Flow() {
	case connector.Concurrent:
		return c.concurrent(p, d)
	case connector.Notified:
		return c.notified(p, d)
	default:
		return c.sequential(p, d)
	}
}

// unfit tells why prefill must not hand over to decode, "" if it may; see
// connector.Dialect. No engine hands over to itself: NIXL would shake hands with its own
// id, the others would send where they receive.
func (c *completion) unfit(d connector.Dialect, p connector.Pair) string {
	if p.Decode != nil && p.Prefill.Address == p.Decode.Address {
		return alone.SameInstance
	}
	return d.Unfit(c.kind, p)
}

// withoutPrefill ends or saves a request that no prefill instance can take.
func (c *completion) withoutPrefill(err error) {
	switch fallback := c.s.Fallback && c.Origin.Client.Err() == nil && !errors.Is(err, sched.ErrUnknownModel); {
	case errors.Is(err, sched.ErrSelf):
		c.alone(alone.SameInstance) // it is a prefill instance, too: no fallback
	case fallback && c.mixed != "":
		c.alone(c.mixed)
	case fallback && c.attempts.last == nil && mixed(err) != "":
		c.alone(mixed(err))
	case fallback && c.attempts.last != nil:
		c.alone(alone.PrefillFailed)
	case fallback:
		c.alone(alone.NoPrefill)
	default:
		c.without(err, instance.Prefill, func(*leg.Failure) bool { return true })
	}
}

// mixed is the reason of a pick for which only partners of another kind are left.
func mixed(err error) string {
	switch {
	case errors.Is(err, sched.ErrVersions):
		return alone.VersionMismatch
	case errors.Is(err, sched.ErrBlocks):
		return alone.BlockMismatch
	case errors.Is(err, sched.ErrConnectors):
		return alone.ConnectorMismatch
	}
	return ""
}

// withoutPartner ends a request for whose prefill there is no decode instance. done
// is false if another prefill instance, which may have one, is due.
func (c *completion) withoutPartner(p *sched.Assignment, err error) (done bool) {
	if c.mixed = mixed(err); c.mixed != "" {
		c.attempts.pass(p.Instance)
		c.lonely = append(c.lonely, kindOf(p))
		return false
	}
	c.withoutDecode(err)
	return true
}

// withoutPair ends a request for which there are decode instances, but none that could
// serve it without a prefill.
func (c *completion) withoutPair() {
	reason := c.Route.Alone
	c.Route.Alone = ""
	c.Answer.Refuse(leg.NeedsPrefill(reason))
}

// withoutDecode ends a request that no decode instance can take.
func (c *completion) withoutDecode(err error) {
	c.without(err, instance.Decode, func(f *leg.Failure) bool { return f.Rule.Retry })
}

// prefillFailed books a failed prefill leg. done tells that the request has been
// answered; if not, another instance may be tried.
func (c *completion) prefillFailed(p *sched.Assignment, f *leg.Failure) (done bool) {
	if c.note(p, f) {
		return false
	}
	switch {
	case f.Class == leg.OurEdit:
		c.alone(c.cutReason)
	case f.Rule.Retry && f.Answer.Status >= 500 && c.s.Fallback:
		// The tries are used up; a decode instance can still do it all.
		c.alone(alone.PrefillFailed)
	default:
		c.Answer.Tell(f)
	}
	return true
}

// decodeFailed books a failed decode leg, in the same way.
func (c *completion) decodeFailed(d *sched.Assignment, f *leg.Failure) (done bool) {
	if c.note(d, f) {
		return false
	}
	c.Answer.Tell(f)
	return true
}

// alone lets one decode instance do the whole request, without KV transfer.
func (c *completion) alone(reason string) { c.aloneFrom(nil, reason) }

// aloneFrom is alone with the pick that is tried first, nil for any.
func (c *completion) aloneFrom(first *sched.Assignment, reason string) {
	c.Route.Alone, c.Route.Prefill = reason, ""
	c.Origin.Times.WithoutPrefill()
	c.usage.Prefilled(nil)
	for done, passed := false, false; !done; {
		d, err := first, error(nil)
		if first = nil; d == nil {
			d, err = c.attempts.pick(instance.Decode, nil)
		}
		switch {
		case err == nil:
		case passed && errors.Is(err, sched.ErrNone):
			c.withoutPair()
			return
		default:
			c.withoutDecode(err)
			return
		}
		if c.s.needsPrefill(d) {
			d.Done()
			c.attempts.pass(d.Instance)
			passed = true
			continue
		}
		c.Route.took(d)
		f := c.aloneOn(d)
		done = f == nil || c.decodeFailed(d, f)
	}
}

// aloneOn lets this decode instance do it. The pick is done then.
func (c *completion) aloneOn(d *sched.Assignment) *leg.Failure {
	defer d.Done()
	l := c.Origin.Begin(d, c.decodeWait())
	defer l.End()
	out := connector.Alone(c.req, connector.Pair{Decode: d.Instance, DecodeRank: d.Rank, Key: leg.Key()})
	return c.decodeOn(l, leg.EngineID(c.Origin.ID), out, nil, func() { c.committed(d, nil) })
}

// committed is called when the answer goes out: its pair has done its part.
func (c *completion) committed(d, p *sched.Assignment) {
	c.learn(d, p)
	p.Done() // its KV has been pulled
	d.Computed(0)
	c.attempts.served(d.Instance)
	c.req = nil
	c.DropBody()
}

// prefilled notes what a prefill instance has answered.
func (c *completion) prefilled(p *sched.Assignment, answer []byte) {
	c.Origin.Times.Pass(stage.Prefilled)
	c.usage.Prefilled(answer)
	c.learnPrefill(p)
	p.Prefilled(c.usage.Prompt())
	if p.Lesson.Wanted() {
		if ids := response.PromptTokenIDs(c.kind, answer); ids != nil {
			p.Lesson.Learn(ids)
		}
	}
}

// newPair names a new attempt.
func (c *completion) newPair(p, d *sched.Assignment) connector.Pair {
	pair := connector.Pair{
		Prefill: p.Instance, PrefillRank: p.Rank,
		ID: leg.EngineID(c.Origin.ID), Key: leg.Key(), TokenIDs: p.Lesson.Wanted(),
	}
	if d != nil {
		pair.Decode, pair.DecodeRank = d.Instance, d.Rank
	}
	return pair
}

// prefillOn sends the prefill leg and reads its answer.
func (c *completion) prefillOn(l *leg.Leg, id string, out connector.Leg) (answer []byte, f *leg.Failure) {
	resp, err := l.Send(http.MethodPost, c.path(&out), c.engineHeader(id, &out), out.Body)
	if err != nil {
		return nil, l.OfError(err)
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.Status != http.StatusOK {
		f := relay.ReadError(l, resp, c.s.Idle)
		if c.cutReason != "" && c.refusesCut(f) {
			f = leg.NewFailure(leg.OurEdit, f.Answer, f.Err)
		}
		return nil, f
	}
	answer, err = relay.ReadAll(resp, maxPrefillAnswer)
	switch {
	case errors.Is(err, relay.ErrTooLarge):
		return nil, l.OfAnswer(err.Error())
	case err != nil:
		return nil, l.OfError(err)
	case (c.kind == openai.Completion || c.kind == openai.Chat) && sse.Aborted(answer):
		return nil, l.OfFinish(leg.Aborted)
	}
	return answer, nil
}

// refusesCut tells whether an engine may have failed at our cut after one token
// (protocol rule R1c). The two agents' APIs say 500 where half a call cannot be parsed.
func (c *completion) refusesCut(f *leg.Failure) bool {
	switch f.Class {
	case leg.Status4xx:
		return f.Answer.Status == http.StatusBadRequest
	case leg.Status5xx:
		return (c.kind == openai.Messages || c.kind == openai.Responses) && f.Answer.Status == http.StatusInternalServerError
	}
	return false
}

// decodeWait is how long a decode leg may take to answer.
func (c *completion) decodeWait() leg.Wait {
	w := leg.Wait{Limit: c.s.FirstByte, Cause: leg.ErrFirstByteTimeout}
	if !c.req.Stream {
		// vLLM sends the header of a non-streamed answer when the answer is
		// whole: generation time, which no first-byte limit may cut.
		w.Limit = c.s.NonStream
	}
	// A leg whose hand-over ran out while the instance was silent is sent again
	// with a new one; for the client it is the same wait.
	w.Limit, w.Silence = max(w.Limit-c.silent, 1), max(c.s.FirstByte-c.silent, 1)
	return w
}

// decodeOn sends the decode leg and passes its answer on. nil means that the
// client has been answered, well or visibly broken.
func (c *completion) decodeOn(l *leg.Leg, id string, out connector.Leg, rw connector.Rewriter, commit func()) *leg.Failure {
	resp, err := l.Send(http.MethodPost, c.path(&out), c.engineHeader(id, &out), out.Body)
	if err != nil {
		return l.OfError(err)
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.Status != http.StatusOK {
		return relay.ReadError(l, resp, c.s.Idle)
	}
	givesUp := ""
	if d := c.s.dialects[l.Connector()]; d != nil { // nobody speaks to some that have a stored response
		givesUp = d.Terms(l.Instance).GivesUp
	}
	rewriters := []connector.Rewriter{&c.usage, relay.Hide(c.kind)}
	if rw != nil {
		rewriters = append(rewriters, rw)
	}
	return c.Answer.Relay(relay.Source{Leg: l, Resp: resp, Commit: commit, Rewriters: rewriters, GivesUp: givesUp})
}

// path is where a leg goes.
func (c *completion) path(out *connector.Leg) string {
	if out.Path != "" {
		return out.Path
	}
	return c.Endpoint
}
