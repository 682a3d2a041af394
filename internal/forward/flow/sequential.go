package flow

import (
	"time"

	"github.com/pdmesh/pdmesh/internal/alone"
	"github.com/pdmesh/pdmesh/internal/connector"
	"github.com/pdmesh/pdmesh/internal/forward/leg"
	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/internal/sched"
)

// sequential is the flow of a pair whose prefill hands over in its answer, and what
// prefill has handed over.
type sequential struct {
	*completion
	pick      *sched.Assignment
	dialect   connector.Dialect
	pair      connector.Pair
	handover  connector.Handover
	budget    leg.Limit // time from prefill's answer until decode must have read the KV cache
	decodeBy  time.Time // when budget ends
	heldUntil time.Time // when prefill frees the KV cache
}

// maxExpired is how many decode legs of a request may end with HandoverExpired before the
// request becomes decode-only.
const maxExpired = 3

func newSequential(c *completion, p *sched.Assignment, d connector.Dialect) *sequential {
	return &sequential{completion: c, pick: p, dialect: d, pair: c.newPair(p, nil)}
}

// nothingHandedOver reports whether prefill's answer had no hand-over: decode computes the
// prompt again.
func (c *sequential) nothingHandedOver() bool { return !c.dialect.SharesPool() && c.handover.Empty() }

// singleUse reports whether a single decode instance may read the hand-over, and only while
// prefill holds the blocks for it.
func (c *sequential) singleUse() bool { return !c.dialect.SharesPool() && !c.handover.Empty() }

// run runs prefill, then decode with what prefill has handed over. done reports whether the
// request has been answered; if not, a new prefill is due.
func (c *sequential) run() (done bool) {
	if f := c.prefill(); f != nil {
		c.pick.Done()
		return c.prefillFailed(c.pick, f)
	}
	done = c.decode()
	if c.singleUse() {
		c.pick.Unfetched(c.heldUntil)
	}
	return done
}

// prefill has the instance compute the prompt, and takes the hand-over.
func (c *sequential) prefill() *leg.Failure {
	l := c.Origin.Begin(c.pick, c.prefillWait())
	defer l.End()
	answer, f := c.prefillOn(l, c.pair.ID, c.dialect.Prefill(c.req, c.pair))
	if f != nil {
		return f
	}
	c.budget, c.heldUntil = c.s.handoverBudget(c.dialect.Terms(c.pick.Instance).Lease), c.s.heldUntil(c.pick, c.dialect)
	c.decodeBy = time.Now().Add(c.budget.After)
	var err error
	if c.handover, err = c.dialect.Handover(answer); err != nil {
		return l.JudgeBadAnswer(err.Error())
	}
	if c.s.RewriteHost {
		c.handover.Params = connector.WithHost(c.handover.Params, c.pick.Instance)
	}
	if !c.dialect.SharesPool() {
		c.s.Recorder.Handed(c.pick.Instance, !c.nothingHandedOver())
		if c.nothingHandedOver() && c.dialect.NeedsPrefill() {
			return l.JudgeBadAnswer("it hands nothing over")
		}
	}
	c.prefilled(c.pick, answer)
	c.attempts.served(c.pick.Instance)
	return nil
}

// decode has one decode instance after another answer with the hand-over. done tells that
// the request has been answered; if not, a new prefill is due.
func (c *sequential) decode() (done bool) {
	for again := false; ; again = true {
		if c.singleUse() {
			if why := c.unusable(again); why != "" {
				c.s.Recorder.Retried(instance.Prefill, why)
				return false
			}
		}
		d, err := c.attempts.pick(instance.Decode, c.pick)
		if err != nil {
			return c.withoutPartner(c.pick, err)
		}
		c.pair.Decode, c.pair.DecodeRank = d.Instance, d.Rank
		if why := c.unfit(c.dialect, c.pair); why != "" && c.dialect.NeedsPrefill() {
			d.Done()
			c.Route.Alone = why
			c.refuseAlone()
			return true
		}
		f := c.decodeWith(d)
		if f == nil {
			return true
		}
		if f.Class == leg.PartnerFailed { // the blocks of the hand-over are gone
			c.s.Recorder.Retried(instance.Prefill, leg.Gone)
			return false
		}
		f.Taken = f.Taken || f.Refused() && c.dialect.Terms(d.Instance).RefusalSpends
		if f.Taken && c.singleUse() {
			c.s.Recorder.HandoverSpent(f.Class)
		}
		if f.Class == leg.HandoverExpired {
			c.expired++
		}
		if c.decodeFailed(d, f) {
			return true
		}
		if f.Class == leg.HandoverExpired && c.expired >= maxExpired && c.s.Fallback && !c.dialect.NeedsPrefill() {
			// Decode's queue is longer than the lease: without a KV transfer the request can
			// wait there.
			c.runAlone(alone.LeaseEnded)
			return true
		}
		if c.dialect.SharesPool() {
			c.pair.ID = leg.EngineID(c.Origin.ID)
			continue
		}
		if f.Taken {
			// The hand-over is spent. The prefill instance did nothing wrong and
			// may be asked again.
			c.attempts.forgetTried(instance.Prefill)
			return false
		}
	}
}

// decodeWith runs one decode leg. It ends the pick.
func (c *sequential) decodeWith(d *sched.Assignment) *leg.Failure {
	defer d.Done()
	c.Route.notePick(d)
	c.pair.Decode, c.pair.DecodeRank = d.Instance, d.Rank
	handover := c.handover
	switch why := c.unfit(c.dialect, c.pair); {
	case why != "":
		// It would not read the hand-over, but compute the prompt and not say so.
		c.Route.Alone, handover = why, connector.Handover{}
	case c.nothingHandedOver():
		c.Route.Alone = alone.NoHandover
	default:
		c.Route.Alone = ""
	}
	w := c.decodeWait()
	if !handover.Empty() && c.singleUse() {
		w.KVUntil, w.KVLimit, w.KVRenews = c.decodeBy, c.budget, c.dialect.Terms(d.Instance).Renews
	}
	l := c.Origin.Begin(d, w)
	defer l.End()
	if !w.KVUntil.IsZero() {
		c.watchPrefill(l)
		defer c.pick.EndAwait()
	}
	return c.decodeOn(l, c.pair.ID, c.dialect.Decode(c.req, c.pair, handover), c.dialect.Rewriter(handover), func() {
		c.pick.EndAwait()
		c.committed(d, c.pick)
	})
}

// watchPrefill calls a decode leg off when the prefill instance whose blocks it is to read
// is found gone. Where an engine has the same id after a restart, decode would read
// whatever is in those blocks then, without an error (TestRestartWhileDecodeWaits).
func (c *sequential) watchPrefill(decode *leg.Leg) {
	g := &prefillWatch{pick: c.pick, decode: decode, gone: c.s.Picker.Gone}
	c.pick.Await(g, time.Now().Add(owesNothing)) // prefill has answered already
	g.CallOff(nil)                               // if it went before Await
}

// prefillWatch watches a prefill instance whose blocks a decode leg reads. It implements
// sched.Leg.
type prefillWatch struct {
	pick   *sched.Assignment
	decode *leg.Leg
	gone   func(*sched.Assignment) error
}

var _ sched.Leg = (*prefillWatch)(nil)

// CallOff implements sched.Leg. Decode may read from an instance that is only slow, or
// refuses connections; its answer says if it could not.
func (g *prefillWatch) CallOff(error) {
	if g.gone(g.pick) != nil {
		g.decode.CallOff(leg.ErrPartner)
	}
}

// Overtaken implements sched.Leg.
func (*prefillWatch) Overtaken(int) {}

// Silent implements sched.Leg.
func (*prefillWatch) Silent(time.Duration) {}

// unusable reports why a hand-over must not be used any more, "" if it may be: its lease is
// about to end, which is not checked for the first decode, or the instance that made it is
// gone.
func (c *sequential) unusable(again bool) leg.Class {
	switch {
	case again && time.Now().After(c.decodeBy):
		c.attempts.forgetTried(instance.Prefill)
		return leg.HandoverExpired
	case c.s.Picker.Gone(c.pick) != nil:
		return leg.Gone
	}
	return ""
}
