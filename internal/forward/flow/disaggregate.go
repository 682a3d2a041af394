package flow

import (
	"time"

	"github.com/pdmesh/pdmesh/internal/connector"
	"github.com/pdmesh/pdmesh/internal/forward/bypass"
	"github.com/pdmesh/pdmesh/internal/forward/stage"
	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/internal/openai"
	"github.com/pdmesh/pdmesh/internal/sched"
	"github.com/pdmesh/pdmesh/internal/sched/estimate"
)

// Disaggregate decides whether a request goes through prefill and decode or is decode-only,
// with predictions of Settings.Estimator.
type Disaggregate struct {
	// Never makes every request decode-only unless that is impossible.
	Never bool
}

// pickPrefill chooses a prefill instance. With Settings.Disaggregate, the pick is
// tentative: a decode-only request must not count as cached at prefill.
func (c *completion) pickPrefill() (*sched.Assignment, error) {
	if c.s.Disaggregate == nil {
		return c.r.attempts.pick(instance.Prefill, nil)
	}
	return c.r.attempts.pickTentative(instance.Prefill)
}

// tryDecodeOnly serves the request decode-only if that is faster than with this prefill instance, and
// reports whether it did. After a failure, it returns false, so that the remaining pairs are tried.
func (c *completion) tryDecodeOnly(p *sched.Assignment, dialect connector.Dialect) (served bool) {
	s := c.s.Disaggregate
	if s == nil || c.r.attempts.lastFailure != nil || len(c.pairs.unpaired) > 0 {
		return false
	}
	why, d := s.decide(c, p, dialect)
	defer d.Done()
	c.r.Route.Decided = why.Reason
	c.s.Recorder.Disaggregated(why.DecodeOnly, why.Reason, why.Stall)
	if !why.DecodeOnly {
		return false
	}
	p.Done()
	if d != nil {
		d.Confirm()
	}
	c.runDecodeOnly(d, why.Reason)
	return true
}

// decide reports whether decode-only is faster. d is the decode instance that it picked for
// the comparison, nil if it needed none.
func (s *Disaggregate) decide(c *completion, p *sched.Assignment, dialect connector.Dialect) (why estimate.Decision, d *sched.Assignment) {
	switch {
	case dialect.NeedsPrefill():
		return estimate.Decision{Reason: estimate.Connector}, nil
	case s.Never:
		return estimate.Decision{DecodeOnly: true, Reason: bypass.Never}, nil
	case c.media:
		return estimate.Decision{Reason: estimate.Media}, nil
	}
	model, prefill := c.r.Origin.Model, onPrefill(p, float64(p.Tokens-p.Cached))
	why = c.s.Estimator.Decide(model, prefill, float64(p.Tokens))
	if !why.DecodeOnly {
		return why, nil
	}
	d, err := c.r.attempts.pickTentative(instance.Decode)
	switch {
	case err != nil:
		return estimate.Decision{Reason: estimate.Full}, nil
	case c.s.needsPrefill(d):
		return estimate.Decision{Reason: estimate.Connector}, d
	}
	return c.s.Estimator.Confirm(model, why, prefill, onDecode(d)), d
}

func onPrefill(p *sched.Assignment, uncached float64) estimate.Prefill {
	return estimate.Prefill{Address: p.Address(), Queued: float64(p.Queued), Uncached: uncached}
}

func onDecode(d *sched.Assignment) estimate.Decode {
	return estimate.Decode{
		Address: d.Address(), Queued: float64(d.Queued), Running: float64(d.Running), Tokens: float64(d.Tokens), Full: d.Full(),
	}
}

// learnPrefill records the duration of a prefill that has just been answered.
func (c *completion) learnPrefill(p *sched.Assignment) {
	if c.s.Estimator == nil || c.media {
		return
	}
	t := c.r.Origin.Times
	c.s.Estimator.Prefilled(c.r.Origin.Model, onPrefill(p, c.uncached(p)), t.At(stage.Prefilled)-t.At(stage.Prefill))
}

// uncached returns the number of tokens that prefill has computed.
func (c *completion) uncached(p *sched.Assignment) float64 {
	if tokens, cached := c.usage.Prompt(); tokens > 0 {
		return float64(tokens - cached)
	}
	return float64(p.Tokens - p.Cached)
}

// learnDecode records the time until decode began to answer; p is nil for a decode-only
// request. It measures only streams of completions and chats: other answers begin when they
// are complete, and streams of other APIs before anything is computed. It skips requests
// with media, whose number of tokens is unknown.
func (c *completion) learnDecode(d, p *sched.Assignment) {
	if c.s.Estimator == nil || c.media || !c.req.Stream || c.kind != openai.Completion && c.kind != openai.Chat || c.r.Route.Failed > 0 {
		return
	}
	t := c.r.Origin.Times
	now := time.Since(t.Start)
	if c.req.Bypass != "" { // several choices, for example, share the time of one stream
		return
	}
	c.streamed = onDecode(d)
	switch prefilled := t.At(stage.Prefilled); {
	case p != nil && prefilled != 0 && c.r.Route.DecodeOnly == "":
		if begun := t.At(stage.Prefill); c.s.Queue != nil && begun != 0 {
			rates := c.s.Estimator.Rates(c.r.Origin.Model, p.Address())
			c.s.Queue.Predicted((now - begun).Seconds(), rates.TTFT(float64(p.Queued), c.uncached(p), float64(p.Tokens)))
		}
		c.s.Estimator.Handed(c.r.Origin.Model, c.streamed, max(0, now-prefilled))
	case p == nil:
		c.s.Estimator.ServedDecodeOnly(c.r.Origin.Model, c.streamed, now-t.At(stage.Decode))
	}
}

// learnStream records the time that the tokens of an ended stream took.
func (c *completion) learnStream() {
	first := c.r.Answer.Times.At(stage.First)
	if c.streamed.Address == "" || first == 0 || c.r.Route.Continued > 0 {
		return
	}
	c.s.Estimator.Streamed(c.r.Origin.Model, c.streamed, c.r.Answer.Tokens.Output, time.Since(c.r.Answer.Times.Start)-first)
}
