// Package flow orders the legs of one request and handles their failures: it decides which
// instance is tried next, and when the request fails.
//
//	pick P ─▶ dialect ─▶ its flow:
//	  sequential   prefill ─▶ KV transfer ─▶ pick D ─▶ decode ─▶ client
//	  notified     pick D ─▶ prefill ─▶ a notification of each rank ─▶ decode ─▶ client
//	  concurrent   pick D ─▶ prefill and decode at once ─▶ client
//	      any failure before the commit: another instance, or another pair
//	no pair left: decode-only on one instance, or an error
//
// A flow does not depend on a dialect; a dialect only names its flow.
package flow

import (
	"sync/atomic"
	"time"

	"github.com/pdmesh/pdmesh/internal/connector"
	"github.com/pdmesh/pdmesh/internal/forward/bypass"
	"github.com/pdmesh/pdmesh/internal/forward/continuation"
	"github.com/pdmesh/pdmesh/internal/forward/leg"
	"github.com/pdmesh/pdmesh/internal/forward/relay"
	"github.com/pdmesh/pdmesh/internal/forward/stage"
	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/internal/openai"
	"github.com/pdmesh/pdmesh/internal/openai/request"
	"github.com/pdmesh/pdmesh/internal/openai/response"
	"github.com/pdmesh/pdmesh/internal/sched"
	"github.com/pdmesh/pdmesh/internal/sched/estimate"
)

// completion is a request that goes through prefill and decode. The prefill leg of a concurrent
// pair may outlive the request's body, so kind, stream and cutReason are copies.
type completion struct {
	r         *Request
	s         *Settings
	req       *request.Request // nil once no further leg is possible
	kind      openai.Kind
	stream    bool
	cutReason string // why an engine may refuse a prefill of one token, see request.Request
	media     bool   // has images, video or audio: the number of tokens is unknown
	usage     relay.Usage
	streamed  estimate.Decode // load of decode when it began a stream that can be measured

	progress *continuation.Answer // the part of a stream that the client has; nil if the stream cannot be continued
	move     move
	// triedMoves counts the calls of MayMove that sent a request to an engine. askedMove is
	// the time of the last call that was not within movePause of the one before.
	triedMoves int
	askedMove  time.Time

	// Findings of earlier attempts:
	expired    int            // decode legs that ended with TransferExpired
	spent      []instance.Key // of decode legs that failed after they may have taken a KV transfer; none with needsPrefill
	pairs      pairing
	unnotified notifyFindings
	working    []*instance.Instance // instances of spent that reported the failure themselves
	extraUsed  bool                 // allowExtra has allowed an additional attempt
}

// Complete answers a completion.
func (r *Request) Complete(req *request.Request) {
	var buf [4][]byte
	head, prompt, media := req.Reading(buf[:])
	wanted := sched.Request{Prompt: prompt, Head: head, Media: media, TokensIdentifyCache: !media && req.TokensIdentifyCache(), Length: len(req.Body)}
	defer r.endAdmission()
	if media {
		r.Settings.Recorder.Media()
	}
	for r.again = true; r.again; {
		r.again, req.Served = false, r.served()
		if r.begin(wanted); !r.admit(media) {
			continue
		}
		c := &completion{
			r: r, s: r.Settings, req: req, kind: req.Kind, stream: req.Stream, cutReason: req.CutReason, media: media,
			usage: relay.Usage{Kind: req.Kind}, progress: continuation.New(req, r.Settings.ContinueStreams, r.Settings.Memory),
		}
		c.run()
		if c.progress != nil {
			c.endProgress()
		}
		if r.busy != nil {
			r.waitBusy()
		}
		if !r.again {
			r.Answer.Prompted(c.usage.Prompt())
			c.learnStream()
		}
	}
}

// run tries pairs until one has answered, each in the flow of its dialect.
func (c *completion) run() {
	defer c.move.endTurn()
	switch c.req.Bypass {
	case "":
	case bypass.StoredResponse:
		c.continueStored(c.req.PreviousResponse())
		return
	default:
		c.runDecodeOnly(nil, c.req.Bypass)
		return
	}
	for !c.tryPair() {
	}
}

// tryPair makes one attempt. done reports whether the request has been answered; if not,
// another pair must be tried.
func (c *completion) tryPair() (done bool) {
	c.r.Route.DecodeOnly = "" // an earlier attempt may have set it
	if d := c.lastResort(); d != nil {
		c.runDecodeOnly(d, bypass.TransferLost)
		return true
	}
	p, err := c.pickPrefill()
	if err != nil {
		c.withoutPrefill(err)
		return true
	}
	defer p.Done()
	if c.pairs.unpairable(p, c.r.attempts.secondRound.prefill) {
		c.r.attempts.skip(p.Instance) // no decode instance could take its KV cache
		return false
	}
	d := c.s.dialects[p.Connector]
	if why := unfit(d, c.req, connector.Pair{Prefill: p.Instance}); why != "" {
		p.Done()
		c.runDecodeOnly(nil, why)
		return true
	}
	if c.tryDecodeOnly(p, d) {
		return true
	}
	p.Confirm()
	c.r.notePick(p)
	a := &attempt{c: c, p: p, dialect: d}
	switch d.Flow() {
	case connector.Concurrent:
		return a.runConcurrent()
	case connector.Notified:
		return a.runNotified()
	default:
		return a.runSequential()
	}
}

// attempt is one attempt at a completion, on one pair. The run methods report whether the
// request has been answered; if not, another pair must be tried.
type attempt struct {
	c       *completion
	p       *sched.Assignment // prefill; tryPair ends it
	dialect connector.Dialect
	pair    connector.Pair

	// Set by runSequential: the transfer params from prefill.
	transfer  connector.TransferParams
	budget    leg.Limit // time from prefill's answer until decode must have read the KV cache
	decodeBy  time.Time // end of budget
	heldUntil time.Time // when prefill frees the KV cache

	decodeRemoved atomic.Pointer[error] // set by runNotified: why decode was removed before its leg; nil if it was not
}

// pickDecode chooses the decode instance before prefill is sent, for a flow in which
// prefill must know it. d is nil if the attempt has ended.
func (a *attempt) pickDecode() (d *sched.Assignment, done bool) {
	d, err := a.c.r.attempts.pick(instance.Decode, a.p)
	if err != nil {
		return nil, a.c.withoutPartner(a.p, err)
	}
	a.pair = a.c.newPair(a.p, d)
	if why := unfit(a.dialect, a.c.req, a.pair); why != "" {
		a.p.Done()
		d.Done()
		a.c.runDecodeOnly(nil, why)
		return nil, true
	}
	a.c.r.notePick(d)
	return d, false
}

// unfit returns why prefill must not transfer its KV cache to decode, "" if it may; see
// connector.Dialect. An engine never transfers to itself: with NIXL, it would handshake
// with its own id, with other connectors, it would send to itself.
func unfit(d connector.Dialect, r *request.Request, p connector.Pair) string {
	switch {
	case p.Decode != nil && p.Prefill.Address == p.Decode.Address:
		return bypass.SameInstance
	case !d.SharesPool() && connector.TruncatesApart(r, p):
		return bypass.EngineTooOld
	}
	return d.Unfit(r.Kind, p)
}

// committed is called when the answer is committed: its pair has served.
func (c *completion) committed(d, p *sched.Assignment) {
	c.learnDecode(d, p)
	p.Done() // decode has its KV cache
	d.Prefilled(0, 0)
	c.r.Route.answered = true
	c.r.Admission.Prefilled()
	c.r.attempts.served(d.Instance)
	if c.progress.Records() {
		return // a later leg may need the body
	}
	c.req = nil
	c.r.DropBody()
}

// prefilled records the answer of a prefill instance.
func (c *completion) prefilled(p *sched.Assignment, answer []byte) {
	if c.progress.Continued() {
		p.Prefilled(0, 0) // the leg's prompt is not the client's
		return
	}
	c.r.Origin.Times.Pass(stage.Prefilled)
	c.r.Origin.Times.Pass(stage.Computed)
	c.usage.Prefilled(answer)
	c.learnPrefill(p)
	p.Prefilled(c.usage.Prompt())
	c.r.Admission.Prefilled()
	if p.Lesson.Wanted() {
		if ids := response.PromptTokenIDs(c.kind, answer); ids != nil {
			p.Lesson.Learn(ids)
		}
	}
}
