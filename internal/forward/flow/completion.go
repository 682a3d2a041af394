// Package flow is the order of the legs of one request, and what follows from their
// failures: which instance is tried next, and when the request fails.
//
//	pick P ─▶ dialect ─▶ its flow:
//	  sequential   prefill ─▶ hand-over ─▶ pick D ─▶ decode ─▶ client
//	  notified     pick D ─▶ prefill ─▶ a notification of each rank ─▶ decode ─▶ client
//	  concurrent   pick D ─▶ prefill and decode at once ─▶ client
//	      any failure before the commit: another instance, or another pair
//	none left: one decode instance alone, or an error
//
// A flow knows no dialect, and a dialect knows a flow by its name only.
package flow

import (
	"github.com/pdmesh/pdmesh/internal/alone"
	"github.com/pdmesh/pdmesh/internal/connector"
	"github.com/pdmesh/pdmesh/internal/forward/relay"
	"github.com/pdmesh/pdmesh/internal/forward/stage"
	"github.com/pdmesh/pdmesh/internal/openai/request"
	"github.com/pdmesh/pdmesh/internal/openai/response"
	"github.com/pdmesh/pdmesh/internal/sched"
)

// completion is a request that goes through prefill and decode.
type completion struct {
	legs
	req        *request.Request // nil once no further leg can come
	pairs      pairing
	unnotified withoutNotice
	media      bool // it has images, video or sound: the bytes of the body say nothing of its tokens
}

// Complete answers a completion.
func (r *Request) Complete(req *request.Request) {
	var room [4][]byte
	head, prompt := req.Reading(room[:])
	media := req.Media()
	r.begin(sched.Request{Prompt: prompt, Head: head, TokensTell: !media && req.TokensTell(), Length: len(req.Body)})
	if media {
		r.Settings.Recorder.Media()
	}
	c := &completion{req: req, media: media, legs: legs{
		Request: r, s: r.Settings, kind: req.Kind, stream: req.Stream, cutReason: req.CutReason, usage: relay.Usage{Kind: req.Kind},
	}}
	c.run()
	c.Answer.Prompted(c.usage.Prompt())
}

// run tries pairs until one has answered, each in the flow of its dialect.
func (c *completion) run() {
	switch c.req.Bypass {
	case "":
	case alone.StoredResponse:
		decodeAlone{c}.continueStored(c.req.PreviousResponse())
		return
	default:
		c.runAlone(c.req.Bypass)
		return
	}
	for !c.attempt() {
	}
}

// attempt tries one pair. done reports whether the request has been answered; if not, another
// pair is due.
func (c *completion) attempt() (done bool) {
	c.Route.Alone = "" // an earlier attempt may have set it
	p, err := c.pickPrefill()
	if err != nil {
		c.withoutPrefill(err)
		return true
	}
	defer p.Done()
	if c.pairs.unpairable(p) {
		c.attempts.skip(p.Instance) // no decode instance could take its KV cache
		return false
	}
	d := c.s.dialects[p.Connector]
	if why := c.unfit(d, connector.Pair{Prefill: p.Instance}); why != "" {
		p.Done()
		c.runAlone(why)
		return true
	}
	if c.tryAlone(p, d) {
		return true
	}
	p.Confirm()
	c.Route.notePick(p)
	switch d.Flow() {
	case connector.Concurrent:
		return concurrent{c}.run(p, d)
	case connector.Notified:
		return notified{c}.run(p, d)
	default:
		return newSequential(c, p, d).run()
	}
}

// unfit reports why prefill must not hand over to decode, "" if it may; see
// connector.Dialect. No engine hands over to itself: with NIXL it would shake hands with
// its own id, with other connectors send to itself.
func (c *completion) unfit(d connector.Dialect, p connector.Pair) string {
	if p.Decode != nil && p.Prefill.Address == p.Decode.Address {
		return alone.SameInstance
	}
	return d.Unfit(c.kind, p)
}

// runAlone has one decode instance serve the whole request, without KV transfer.
func (c *completion) runAlone(reason string) { decodeAlone{c}.run(nil, reason) }

// committed is called when the answer is committed: its pair has served.
func (c *completion) committed(d, p *sched.Assignment) {
	c.s.Disaggregate.learnDecode(c, d, p)
	p.Done() // decode has its KV cache
	d.Prefilled(0, 0)
	c.attempts.served(d.Instance)
	c.req = nil
	c.DropBody()
}

// prefilled notes the answer of a prefill instance.
func (c *completion) prefilled(p *sched.Assignment, answer []byte) {
	c.Origin.Times.Pass(stage.Prefilled)
	c.usage.Prefilled(answer)
	c.s.Disaggregate.learnPrefill(c, p)
	p.Prefilled(c.usage.Prompt())
	if p.Lesson.Wanted() {
		if ids := response.PromptTokenIDs(c.kind, answer); ids != nil {
			p.Lesson.Learn(ids)
		}
	}
}
