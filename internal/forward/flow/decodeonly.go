package flow

import (
	"errors"
	"slices"

	"github.com/pdmesh/pdmesh/internal/connector"
	"github.com/pdmesh/pdmesh/internal/forward/bypass"
	"github.com/pdmesh/pdmesh/internal/forward/leg"
	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/internal/sched"
)

// runDecodeOnly lets one decode instance serve the whole request, including the prompt,
// without KV transfer. first is the pick to try first, or nil.
func (c *completion) runDecodeOnly(first *sched.Assignment, reason string) {
	c.r.Route.DecodeOnly, c.r.Route.Prefill = reason, ""
	c.r.Origin.Times.WithoutPrefill()
	if !c.progress.Continued() {
		c.usage.Prefilled(nil)
	}
	for done, passed := false, false; !done; {
		d, err := first, error(nil)
		if first = nil; d == nil {
			d = c.extra()
		}
		if d == nil {
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

// maxSpent is the number of decode legs of a request that may fail with a KV transfer
// before it becomes decode-only.
const maxSpent = 2

// transferSpent records a decode leg that failed after it may have taken a KV transfer. A
// 503 (with some engines) and an abort also spend the transfer, but are not caused by it.
func (c *completion) transferSpent(d *sched.Assignment, f *leg.Failure) {
	c.s.Recorder.TransferSpent(f.Class)
	if f.Class != leg.TransferExpired && f.Class != leg.Aborted && !f.Rule.SameKV && !c.s.needsPrefill(d) {
		c.spent = append(c.spent, d.Instance.Key)
		if reported(f) {
			c.working = append(c.working, d.Instance)
		}
	}
}

// reported reports whether the engine sent the failure itself: it works, but may be unable
// to read from prefill.
func reported(f *leg.Failure) bool { return f.Class == leg.Status5xx || f.Class == leg.ErrorEvent }

// transfersLost reports whether the request should become decode-only because decode legs
// have failed with KV transfers: maxSpent of them, or any if only one attempt is left.
func (c *completion) transfersLost() bool {
	return c.s.Fallback && !c.saturated() &&
		(len(c.spent) >= maxSpent || len(c.spent)+c.expired > 0 && c.r.attempts.counted >= c.s.MaxAttempts-1)
}

// allowExtra allows more attempts, decode-only, for a request that has used up its attempts. Each decode
// instance that reported a failure with a KV transfer gets one: it answers, while others may have left. If
// there is none, a single attempt goes to an instance that is untried or failed only with a KV transfer.
func (c *completion) allowExtra(d *sched.Assignment, f *leg.Failure) bool {
	t := &c.r.attempts
	if !f.Rule.Retry || t.counted < c.s.MaxAttempts || !c.transfersLost() {
		return false
	}
	spent := c.spent
	if c.r.Route.DecodeOnly != "" { // this instance has failed it without a KV transfer, too
		c.working = slices.DeleteFunc(c.working, func(in *instance.Instance) bool { return in.Key == d.Instance.Key })
		spent = slices.DeleteFunc(slices.Clone(spent), func(k instance.Key) bool { return k == d.Instance.Key })
	}
	if c.extraUsed && len(c.working) == 0 || len(spent) == 0 || !c.s.Budget.Take(c.s.Picker.InFlight(d.Instance.Key)) {
		return false
	}
	c.extraUsed, t.avoided.decode = true, append(t.avoided.decode, spent...)
	t.tried.decode = slices.DeleteFunc(slices.Clone(t.tried.decode), func(k instance.Key) bool { return slices.Contains(spent, k) })
	return true
}

// extra picks one of c.working for an additional attempt, each at most once. It returns nil
// if none may be picked.
func (c *completion) extra() *sched.Assignment {
	if !c.extraUsed || len(c.working) == 0 {
		return nil
	}
	t := &c.r.attempts
	tried := t.tried.decode
	defer func() { t.tried.decode = tried }()
	for t.tried.decode = nil; ; {
		d, err := t.pickOnce(instance.Decode, nil)
		if err != nil {
			c.working = nil
			return nil
		}
		n := len(c.working)
		c.working = slices.DeleteFunc(c.working, func(in *instance.Instance) bool { return in.Key == d.Instance.Key })
		if len(c.working) < n {
			return d
		}
		d.Done()
		t.skip(d.Instance)
	}
}

// lastResort picks a decode instance for a decode-only attempt: one that has not failed the request, else
// one that has failed only with a KV transfer, else any. It returns nil if another pair must be tried.
func (c *completion) lastResort() *sched.Assignment {
	if !c.transfersLost() {
		return nil
	}
	if d := c.extra(); d != nil {
		return d
	}
	t := &c.r.attempts
	var failed, without []instance.Key
	for _, s := range t.suspects {
		if s.in.Role == instance.Decode && s.in.Ranks() == 1 { // for several ranks, see triedRanks
			failed = append(failed, s.in.Key)
			if !slices.Contains(c.spent, s.in.Key) {
				without = append(without, s.in.Key)
			}
		}
	}
	for i, tried := range [][]instance.Key{slices.Concat(failed, t.avoided.decode), failed, without, nil} {
		if t.tried.decode = tried; i == 3 {
			t.forgetTried(instance.Decode)
		}
		d, err := t.pickOnce(instance.Decode, nil)
		switch {
		case err == nil && !c.s.needsPrefill(d):
			return d
		case err == nil:
			d.Done()
			return nil
		case !errors.Is(err, sched.ErrNone):
			return nil
		}
	}
	return nil
}

// answerOn sends the request to this decode instance, decode-only. It ends the pick.
func (c *completion) answerOn(d *sched.Assignment) *leg.Failure {
	defer d.Done()
	l := c.r.Origin.Begin(d, c.decodeWait())
	defer l.End()
	out := connector.DecodeOnly(c.reqFor(d.Instance), connector.Pair{Decode: d.Instance, DecodeRank: d.Rank, Key: leg.Key(), AnswerIDs: c.progress.WantsIDs()})
	return c.decodeOn(l, leg.EngineID(c.r.Origin.ID), out, func() { c.committed(d, nil) })
}

// continueStored answers a request that continues a stored response. Only the instance
// that has the response knows the whole prompt.
func (c *completion) continueStored(id string) {
	c.r.askHolders(id, func(a *sched.Assignment) *leg.Failure {
		c.r.Route.DecodeOnly = bypass.StoredResponse
		c.r.matchTarget(a.Instance)
		c.req.Served = c.r.served()
		if c.s.needsPrefill(a) {
			return leg.JudgeNeedsPrefill(bypass.StoredResponse)
		}
		return c.answerOn(a)
	})
}
