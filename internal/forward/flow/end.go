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
		c.alone(alone.SameInstance) // it is a prefill instance, too: no fallback
	case fallback && c.pairs.mixed != "":
		c.alone(c.pairs.mixed)
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

// withoutPartner ends a request for whose prefill there is no decode instance. done
// is false if another prefill instance, which may have one, is due.
func (c *completion) withoutPartner(p *sched.Assignment, err error) (done bool) {
	if c.pairs.without(p, err) {
		c.attempts.pass(p.Instance)
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

// pairing is what a request has found out about which instances go together.
type pairing struct {
	// mixed is why a prefill instance found no decode instance to go with it, "" if
	// all did.
	mixed string
	// unpaired are the kinds of prefill instances that found none.
	unpaired []kind
}

// without notes that a prefill instance has found no partner. It tells whether that is
// for its kind; then one of another kind may have a partner.
func (g *pairing) without(p *sched.Assignment, err error) (ofKind bool) {
	if g.mixed = mixed(err); g.mixed != "" {
		g.unpaired = append(g.unpaired, kindOf(p))
	}
	return g.mixed != ""
}

// hopeless tells whether an instance of the same kind has found no partner.
func (g *pairing) hopeless(p *sched.Assignment) bool { return slices.Contains(g.unpaired, kindOf(p)) }

// kind of a prefill instance, by which it is paired.
type kind struct {
	connector, build string
	blocks           int
}

func kindOf(a *sched.Assignment) kind { return kind{a.Connector, a.Build, a.Blocks} }

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
