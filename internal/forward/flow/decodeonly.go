package flow

import (
	"errors"

	"github.com/pdmesh/pdmesh/internal/connector"
	"github.com/pdmesh/pdmesh/internal/forward/bypass"
	"github.com/pdmesh/pdmesh/internal/forward/leg"
	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/internal/sched"
)

// runDecodeOnly has one decode instance serve the whole request: it computes the prompt, too, without
// KV transfer. first is the pick that is tried first, nil if there is none yet.
func (c *completion) runDecodeOnly(first *sched.Assignment, reason string) {
	c.r.Route.DecodeOnly, c.r.Route.Prefill = reason, ""
	c.r.Origin.Times.WithoutPrefill()
	if !c.progress.Continued() {
		c.usage.Prefilled(nil)
	}
	for done, passed := false, false; !done; {
		d, err := first, error(nil)
		if first = nil; d == nil {
			d, err = c.r.attempts.pick(instance.Decode, nil)
		}
		switch {
		case err == nil:
		case passed && errors.Is(err, sched.ErrNone):
			c.refuseDecodeOnly()
			return
		default:
			c.withoutDecode(err)
			return
		}
		if c.s.needsPrefill(d) {
			d.Done()
			c.r.attempts.skip(d.Instance)
			passed = true
			continue
		}
		c.r.notePick(d)
		f := c.answerOn(d)
		done = f == nil || c.decodeFailed(d, f)
	}
}

// answerOn has this decode instance serve the request. It ends the pick.
func (c *completion) answerOn(d *sched.Assignment) *leg.Failure {
	defer d.Done()
	l := c.r.Origin.Begin(d, c.decodeWait())
	defer l.End()
	out := connector.DecodeOnly(c.req, connector.Pair{Decode: d.Instance, DecodeRank: d.Rank, Key: leg.Key(), AnswerIDs: c.progress.WantsIDs()})
	return c.decodeOn(l, leg.EngineID(c.r.Origin.ID), out, nil, func() { c.committed(d, nil) })
}

// continueStored answers a request that continues a stored response. Only the instance
// that has the response knows the whole prompt.
func (c *completion) continueStored(id string) {
	c.r.Route.DecodeOnly = bypass.StoredResponse
	c.r.askHolders(id, func(a *sched.Assignment) *leg.Failure {
		if c.s.needsPrefill(a) {
			return leg.JudgeNeedsPrefill(bypass.StoredResponse)
		}
		return c.answerOn(a)
	})
}
