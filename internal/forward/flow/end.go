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

// The functions below handle a pair of legs that has not answered: they end the request or
// let another pair be tried.

// withoutPrefill handles a request that no prefill instance can take: it becomes
// decode-only, or fails.
func (c *completion) withoutPrefill(err error) {
	switch fallback := c.s.Fallback && !c.saturated() && c.r.Origin.Client.Err() == nil && !errors.Is(err, sched.ErrUnknownModel); {
	case errors.Is(err, sched.ErrSelf):
		c.runDecodeOnly(nil, bypass.SameInstance) // the decode instance is also a prefill instance: not a fallback
	case fallback && c.pairs.mismatch != "":
		c.runDecodeOnly(nil, c.pairs.mismatch)
	case c.unnotified.cannotReceive && len(c.unnotified.keys) == 0 && c.r.attempts.lastFailure == nil:
		c.runDecodeOnly(nil, bypass.NotHeard)
	case fallback && len(c.unnotified.keys) > 0 && (c.r.attempts.lastFailure == nil || c.r.attempts.lastFailure.Class == leg.NotNotified):
		c.runDecodeOnly(nil, bypass.NotNotified)
	case fallback && c.r.attempts.lastFailure == nil && mismatchReason(err) != "":
		c.runDecodeOnly(nil, mismatchReason(err))
	case fallback && c.r.attempts.lastFailure != nil:
		c.runDecodeOnly(nil, bypass.PrefillFailed)
	case fallback:
		c.runDecodeOnly(nil, bypass.NoPrefill)
	case !c.s.Fallback && len(c.unnotified.keys) > 0 && c.r.attempts.lastFailure == nil:
		e := leg.Unavailable(instance.Prefill, c.r.Model())
		e.Message += ": " + bypass.Text(bypass.NotNotified)
		c.r.refuse(e)
	default:
		c.r.answerUnserved(err, instance.Prefill, func(*leg.Failure) bool { return true })
	}
}

// saturated reports whether a prefill instance refused the request because it is full.
// Decode instances then do not compute its prompt, which would delay their streams. They do
// if the client has a part of its answer: that client cannot send the request again.
func (c *completion) saturated() bool {
	f := c.r.attempts.lastFailure
	return f != nil && f.Class == leg.Busy && c.move.lost.IsZero()
}

// withoutPartner handles a prefill instance for which no decode instance was picked. done
// is false if another prefill instance may have a partner; it is tried next.
func (c *completion) withoutPartner(p *sched.Assignment, err error) (done bool) {
	if c.pairs.noPartner(p, err, c.r.attempts.maySecondRound(instance.Decode)) {
		c.r.attempts.skip(p.Instance)
		return false
	}
	c.withoutDecode(err)
	return true
}

// refuseDecodeOnly refuses a request for which only decode instances are left, none of which may
// serve it without a prefill.
func (c *completion) refuseDecodeOnly() {
	reason := c.r.Route.DecodeOnly
	c.r.Route.DecodeOnly = ""
	c.r.refuse(leg.NeedsPrefill(reason))
}

// withoutDecode ends a request that no decode instance can take.
func (c *completion) withoutDecode(err error) {
	c.r.answerUnserved(err, instance.Decode, func(f *leg.Failure) bool { return f.Rule.Retry })
}

// prefillFailed handles a failed prefill leg. done reports whether the request has been
// answered; if not, another instance may be tried.
func (c *completion) prefillFailed(p *sched.Assignment, f *leg.Failure) (done bool) {
	if c.r.note(p, f) {
		return false
	}
	switch {
	case f.Class == leg.OurEdit:
		c.runDecodeOnly(nil, c.cutReason)
	case (f.Rule.Retry || f.Class == leg.TooLarge) && c.s.Fallback && (f.Answer.Status >= 500 && f.Class != leg.Busy || !c.move.lost.IsZero()):
		// No further attempt at prefill is allowed; decode-only is still possible.
		reason := bypass.PrefillFailed
		if f.Class == leg.NotNotified {
			reason = bypass.NotNotified
		}
		c.runDecodeOnly(nil, reason)
	default:
		c.r.sendFailure(f)
	}
	return true
}

// decodeFailed handles a failed decode leg in the same way.
func (c *completion) decodeFailed(d *sched.Assignment, f *leg.Failure) (done bool) {
	if f.Begun {
		return c.continueAfter(d, f)
	}
	if c.r.note(d, f) || c.allowExtra(d, f) {
		return false
	}
	c.r.sendFailure(f)
	return true
}

// pairing has a request's findings about prefill instances without a partner.
type pairing struct {
	// mismatch is why the last of them cannot be paired with any decode instance; "" if it failed otherwise.
	mismatch string
	// unpaired are the pair keys without a partner, failed those whose partners failed but may be tried again.
	unpaired, failed []connector.PairKey
}

// noPartner records that no decode instance was picked for a prefill instance. It reports
// whether the pair key is the reason: an instance with another key may have a partner.
// failed reports whether partners have failed, but may be tried again.
func (g *pairing) noPartner(p *sched.Assignment, err error, failed bool) (forKey bool) {
	switch g.mismatch = mismatchReason(err); {
	case g.mismatch == "":
		return false
	case failed:
		g.failed = append(g.failed, p.PairKey)
	default:
		g.unpaired = append(g.unpaired, p.PairKey)
	}
	return true
}

// unpairable reports whether an instance with the same key has no partner. In the second
// round, partners that have failed count as partners.
func (g *pairing) unpairable(p *sched.Assignment, secondRound bool) bool {
	return slices.Contains(g.unpaired, p.PairKey) || !secondRound && slices.Contains(g.failed, p.PairKey)
}

// mismatchReason returns the reason for decode-only if none of the remaining instances can
// be paired; "" for any other error of a pick.
func mismatchReason(err error) string {
	switch {
	case errors.Is(err, sched.ErrVersions):
		return bypass.VersionMismatch
	case errors.Is(err, sched.ErrBlocks):
		return bypass.BlockMismatch
	case errors.Is(err, sched.ErrConnectors):
		return bypass.ConnectorMismatch
	}
	return ""
}
