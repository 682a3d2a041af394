package flow

import (
	"context"
	"time"

	"github.com/pdmesh/pdmesh/internal/connector"
	"github.com/pdmesh/pdmesh/internal/forward/leg"
	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/internal/sched"
)

// concurrent is the flow of a pair whose legs run at once.
type concurrent struct{ *completion }

// run runs both legs of a pair at once. When one fails the other is aborted: an
// engine would wait for minutes for a partner that does not come. done reports whether the
// request has been answered; if not, another pair is due.
func (c concurrent) run(p *sched.Assignment, dialect connector.Dialect) (done bool) {
	d, err := c.attempts.pick(instance.Decode, p)
	if err != nil {
		return c.withoutPartner(p, err)
	}
	defer d.Done()
	pair := c.newPair(p, d)
	if why := c.unfit(dialect, pair); why != "" {
		p.Done()
		d.Done()
		c.runAlone(why)
		return true
	}
	c.Route.notePick(d)
	out := dialect.Decode(c.req, pair, connector.Handover{})

	w := c.decodeWait()
	w.Partner = true
	l := c.Origin.Begin(d, w)
	defer l.End()
	other := c.beginPartner(p, l, pair.ID, dialect.Prefill(c.req, pair))
	c.usage.PrefillDone = other.done
	f := c.decodeOn(l, pair.ID, out, dialect.Rewriter(connector.Handover{}), func() {
		_ = other.leg.Commit() // its failure does not matter any more
		c.committed(d, p)
	})
	cause := other.causeOf(f)
	other.end()
	l.End()
	d.Done()
	c.usage.PrefillDone = nil
	if other.served {
		c.attempts.served(p.Instance)
		p.Unfetched(other.heldUntil)
	}
	switch {
	case f == nil:
		return true
	case cause != nil:
		p.Done()
		return c.prefillFailed(p, cause)
	}
	if other.served && f.Taken {
		c.s.Recorder.HandoverSpent(f.Class)
	}
	return c.decodeFailed(d, f)
}

// partner is the prefill leg of a concurrent pair, which runs beside its decode leg.
type partner struct {
	leg       *leg.Leg
	done      chan struct{} // closed when the fields below do not change any more
	served    bool
	heldUntil time.Time // when prefill frees the KV cache of the prompt
	failure   *leg.Failure
}

// beginPartner sends the prefill leg. Whenever that ends before the answer is committed,
// by its own failure or because its instance is gone, the decode leg is called off: it
// would wait in vain. That holds after prefill has answered, too: decode may still have to
// read from it.
func (c concurrent) beginPartner(p *sched.Assignment, decode *leg.Leg, id string, out connector.Leg) *partner {
	other := &partner{
		leg:  c.Origin.Begin(p, c.prefillWait()),
		done: make(chan struct{}),
	}
	context.AfterFunc(other.leg, func() { decode.CallOff(leg.ErrPartner) })
	release := c.Origin.HoldBody()
	go func() {
		defer close(other.done)
		answer, f := c.prefillOn(other.leg, id, out)
		release()
		if f != nil {
			other.failure = f
			other.leg.End()
			return
		}
		other.served, other.heldUntil = true, c.s.heldUntil(p, c.s.dialects[p.Connector])
		other.leg.ClearLimit()
		c.prefilled(p, answer)
		decode.PartnerDone()
	}()
	return other
}

// causeOf returns prefill's failure if that is why the decode leg failed, nil if not.
func (o *partner) causeOf(decode *leg.Failure) *leg.Failure {
	switch {
	case decode == nil || decode.Class == leg.ClientGone:
		return nil
	case decode.Class != leg.PartnerFailed:
		// Decode may have noticed before the proxy that its partner is gone.
		select {
		case <-o.done:
			return o.failure
		default:
			return nil
		}
	}
	<-o.done // its leg has ended
	if o.failure == nil {
		o.failure = o.leg.JudgeCallOff(context.Cause(o.leg)) // it had answered, and its instance is gone
	}
	return o.failure
}

// end ends the leg and waits for its goroutine.
func (o *partner) end() {
	o.leg.End()
	<-o.done
}
