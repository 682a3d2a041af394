package flow

import (
	"time"

	"github.com/pdmesh/pdmesh/internal/alone"
	"github.com/pdmesh/pdmesh/internal/connector"
	"github.com/pdmesh/pdmesh/internal/forward/leg"
	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/internal/sched"
)

// handed is a prefill that succeeded: what it left, where, and until when it
// may be used.
type handed struct {
	pick     *sched.Assignment
	dialect  connector.Dialect
	pair     connector.Pair
	handover connector.Handover
	until    time.Time
	kept     time.Time // when prefill lets go of it
}

// lost tells that prefill has worked in vain: it has handed nothing over.
func (kv *handed) lost() bool { return !kv.dialect.SharesPool() && kv.handover.Empty() }

// singleUse tells that the hand-over is one that a single decode instance may read,
// and only while prefill holds the blocks for it.
func (kv *handed) singleUse() bool { return !kv.dialect.SharesPool() && !kv.handover.Empty() }

// sequential runs a prefill on p, then a decode with what that has handed over. done
// tells that the request has been answered; if not, a new prefill is due.
func (c *completion) sequential(p *sched.Assignment, d connector.Dialect) (done bool) {
	kv := &handed{pick: p, dialect: d, pair: c.newPair(p, nil)}
	if f := c.prefill(kv); f != nil {
		p.Done()
		return c.prefillFailed(p, f)
	}
	done = c.decode(kv)
	if kv.singleUse() {
		p.Unfetched(kv.kept)
	}
	return done
}

// kept is until when a prefill instance keeps what it has just computed.
func (c *completion) kept(p *sched.Assignment, d connector.Dialect) time.Time {
	if lease := d.Terms(p.Instance).Lease; lease > 0 {
		return time.Now().Add(lease)
	}
	return time.Now().Add(c.s.KVBudget)
}

// prefill makes the instance compute the prompt.
func (c *completion) prefill(kv *handed) *leg.Failure {
	l := c.Origin.Begin(kv.pick, leg.Wait{Limit: c.s.Prefill, Cause: leg.ErrPrefillTimeout})
	defer l.End()
	answer, f := c.prefillOn(l, kv.pair.ID, kv.dialect.Prefill(c.req, kv.pair))
	if f != nil {
		return f
	}
	kv.until, kv.kept = time.Now().Add(c.budget(kv.dialect.Terms(kv.pick.Instance).Lease)), c.kept(kv.pick, kv.dialect)
	var err error
	if kv.handover, err = kv.dialect.Handover(answer); err != nil {
		return l.OfAnswer(err.Error())
	}
	if c.s.RewriteHost {
		kv.handover.Params = connector.WithHost(kv.handover.Params, kv.pick.Instance)
	}
	if !kv.dialect.SharesPool() {
		c.s.Recorder.Handed(kv.pick.Instance, !kv.lost())
		if kv.lost() && kv.dialect.NeedsPrefill() {
			return l.OfAnswer("it hands nothing over")
		}
	}
	c.prefilled(kv.pick, answer)
	c.attempts.served(kv.pick.Instance)
	return nil
}

// decode runs the answer off a prefill. It tells whether the request has been
// answered; if not, a new prefill is due.
func (c *completion) decode(kv *handed) (done bool) {
	for again := false; ; again = true {
		if kv.singleUse() {
			if why := c.spoilt(kv, again); why != "" {
				c.s.Recorder.Retried(instance.Prefill, why)
				return false
			}
		}
		d, err := c.attempts.pick(instance.Decode, kv.pick)
		if err != nil {
			return c.withoutPartner(kv.pick, err)
		}
		kv.pair.Decode, kv.pair.DecodeRank = d.Instance, d.Rank
		if why := c.unfit(kv.dialect, kv.pair); why != "" && kv.dialect.NeedsPrefill() {
			d.Done()
			c.Route.Alone = why
			c.withoutPair()
			return true
		}
		f, waited := c.decodeWith(d, kv)
		if f == nil {
			return true
		}
		if f.Class == leg.PartnerFailed { // nobody can read the hand-over any more
			c.s.Recorder.Retried(instance.Prefill, leg.Gone)
			return false
		}
		f.Taken = f.Taken || f.Refused() && kv.dialect.Terms(d.Instance).RefusalSpends
		if f.Taken && kv.singleUse() {
			c.s.Recorder.HandoverSpent(f.Class)
		}
		if f.Class == leg.HandoverExpired {
			c.silent += waited
		}
		if c.decodeFailed(d, f) {
			return true
		}
		if kv.dialect.SharesPool() {
			kv.pair.ID = leg.EngineID(c.Origin.ID)
			continue
		}
		if f.Taken {
			// The hand-over is spent. The prefill instance did nothing wrong and
			// may be asked again.
			c.attempts.forget(instance.Prefill)
			return false
		}
	}
}

// budget is how long a hand-over may wait. A lease that is known allows two thirds of
// it, since decode needs some time to extend it; else what is configured counts.
func (c *completion) budget(lease time.Duration) time.Duration {
	if lease > 0 {
		return lease / 3 * 2
	}
	return c.s.KVBudget
}

// decodeWith runs one decode leg, and tells how long it took. The pick is done then.
func (c *completion) decodeWith(d *sched.Assignment, kv *handed) (*leg.Failure, time.Duration) {
	defer d.Done()
	c.Route.took(d)
	kv.pair.Decode, kv.pair.DecodeRank = d.Instance, d.Rank
	handover := kv.handover
	switch why := c.unfit(kv.dialect, kv.pair); {
	case why != "":
		// It would not read the hand-over, and compute the prompt without a word.
		c.Route.Alone, handover = why, connector.Handover{}
	case kv.lost():
		c.Route.Alone = alone.NoHandover
	default:
		c.Route.Alone = ""
	}
	w := c.decodeWait()
	if !handover.Empty() && kv.singleUse() {
		w.KVUntil = kv.until
	}
	l := c.Origin.Begin(d, w)
	defer l.End()
	if !w.KVUntil.IsZero() {
		c.watchGiver(kv.pick, l)
		defer kv.pick.Settle()
	}
	f := c.decodeOn(l, kv.pair.ID, kv.dialect.Decode(c.req, kv.pair, handover), kv.dialect.Rewriter(handover), func() {
		kv.pick.Settle()
		c.committed(d, kv.pick)
	})
	return f, l.Waited()
}

// watchGiver calls a decode leg off when the prefill instance whose blocks it is to read
// is found gone. Where an engine has the same name in its next life decode would read
// whatever that one has at the place, without an error.
func (c *completion) watchGiver(p *sched.Assignment, decode *leg.Leg) {
	g := &giver{pick: p, decode: decode, gone: c.s.Picker.Gone}
	p.Await(g, time.Now().Add(notAsked)) // it owes no answer
	g.CallOff(nil)                       // if it went between the last look and Await
}

// giver is a prefill instance whose blocks a decode leg reads. It implements sched.Leg.
type giver struct {
	pick   *sched.Assignment
	decode *leg.Leg
	gone   func(*sched.Assignment) error
}

var _ sched.Leg = (*giver)(nil)

// CallOff implements sched.Leg. One that is merely slow, or refuses connections, may be
// read from all the same; decode says if not.
func (g *giver) CallOff(error) {
	if g.gone(g.pick) != nil {
		g.decode.CallOff(leg.ErrPartner)
	}
}

// Silent implements sched.Leg.
func (*giver) Silent(time.Duration) {}

// spoilt tells why a hand-over must not be used any more, "" if it may: its lease is
// about to end, which is no matter when it has just been made, or the life of the
// engine that made it has ended.
func (c *completion) spoilt(kv *handed, again bool) leg.Class {
	switch {
	case again && time.Now().After(kv.until):
		c.attempts.forget(instance.Prefill)
		return leg.HandoverExpired
	case c.s.Picker.Gone(kv.pick) != nil:
		return leg.Gone
	}
	return ""
}
