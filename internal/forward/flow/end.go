package flow

import (
	"errors"
	"slices"

	"github.com/pdmesh/pdmesh/internal/alone"
	"github.com/pdmesh/pdmesh/internal/forward/leg"
	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/internal/sched"
)

// How a request ends that no pair of legs has answered, and whether another pair is due.

// withoutPrefill ends or saves a request that no prefill instance can take.
func (c *completion) withoutPrefill(err error) {
	switch fallback := c.s.Fallback && c.Origin.Client.Err() == nil && !errors.Is(err, sched.ErrUnknownModel); {
	case errors.Is(err, sched.ErrSelf):
		c.runAlone(alone.SameInstance) // it is a prefill instance, too: no fallback
	case fallback && c.pairs.mismatch != "":
		c.runAlone(c.pairs.mismatch)
	case fallback && c.attempts.lastFailure == nil && mismatchReason(err) != "":
		c.runAlone(mismatchReason(err))
	case fallback && c.attempts.lastFailure != nil:
		c.runAlone(alone.PrefillFailed)
	case fallback:
		c.runAlone(alone.NoPrefill)
	default:
		c.answerUnserved(err, instance.Prefill, func(*leg.Failure) bool { return true })
	}
}

// withoutPartner ends a request for whose prefill there is no decode instance. done
// is false if another prefill instance, which may have one, is due.
func (c *completion) withoutPartner(p *sched.Assignment, err error) (done bool) {
	if c.pairs.noPartner(p, err) {
		c.attempts.skip(p.Instance)
		return false
	}
	c.withoutDecode(err)
	return true
}

// refuseAlone ends a request for which there are decode instances, but none that could
// serve it without a prefill.
func (c *completion) refuseAlone() {
	reason := c.Route.Alone
	c.Route.Alone = ""
	c.Answer.Refuse(leg.NeedsPrefill(reason))
}

// withoutDecode ends a request that no decode instance can take.
func (c *completion) withoutDecode(err error) {
	c.answerUnserved(err, instance.Decode, func(f *leg.Failure) bool { return f.Rule.Retry })
}

// prefillFailed books a failed prefill leg. done tells that the request has been
// answered; if not, another instance may be tried.
func (c *completion) prefillFailed(p *sched.Assignment, f *leg.Failure) (done bool) {
	if c.note(p, f) {
		return false
	}
	switch {
	case f.Class == leg.OurEdit:
		c.runAlone(c.cutReason)
	case f.Rule.Retry && f.Answer.Status >= 500 && c.s.Fallback:
		// The tries are used up; a decode instance can still do it all.
		c.runAlone(alone.PrefillFailed)
	default:
		c.Answer.SendFailure(f)
	}
	return true
}

// decodeFailed books a failed decode leg, in the same way.
func (c *completion) decodeFailed(d *sched.Assignment, f *leg.Failure) (done bool) {
	if c.note(d, f) {
		return false
	}
	c.Answer.SendFailure(f)
	return true
}

// pairing is what a request has found out about which instances go together.
type pairing struct {
	// mismatch is why a prefill instance found no decode instance to go with it, "" if
	// all did.
	mismatch string
	// unpaired are the kinds of prefill instances that found none.
	unpaired []pairKey
}

// noPartner notes that a prefill instance has found no partner. It tells whether that is
// for its kind; then one of another kind may have a partner.
func (g *pairing) noPartner(p *sched.Assignment, err error) (ofKind bool) {
	if g.mismatch = mismatchReason(err); g.mismatch != "" {
		g.unpaired = append(g.unpaired, pairKeyOf(p))
	}
	return g.mismatch != ""
}

// unpairable tells whether an instance of the same kind has found no partner.
func (g *pairing) unpairable(p *sched.Assignment) bool {
	return slices.Contains(g.unpaired, pairKeyOf(p))
}

// pairKey of a prefill instance, by which it is paired.
type pairKey struct {
	connector, build string
	blocks           int
}

func pairKeyOf(a *sched.Assignment) pairKey { return pairKey{a.Connector, a.Build, a.Blocks} }

// mismatchReason is the reason of a pick for which only partners of another kind are left.
func mismatchReason(err error) string {
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
