package flow

import (
	"context"
	"time"

	"github.com/pdmesh/pdmesh/internal/connector"
	"github.com/pdmesh/pdmesh/internal/forward/leg"
)

// runConcurrent runs both legs of a pair at once. If one fails, the other is aborted: its
// engine would wait for minutes for the missing partner.
func (a *attempt) runConcurrent() (done bool) {
	d, done := a.pickDecode()
	if d == nil {
		return done
	}
	defer d.Done()
	out := a.dialect.Decode(a.c.reqFor(a.pair.Decode), a.pair, connector.TransferParams{})
	w := a.c.decodeWait()
	w.Partner = true
	l := a.c.r.Origin.Begin(d, w)
	defer l.End()
	l.Once = true
	other := a.beginPartner(l, a.dialect.Prefill(a.c.reqFor(a.p.Instance), a.pair))
	a.c.usage.PrefillDone = other.done
	f := a.c.decodeOn(l, a.pair.ID, out, func() {
		_ = other.leg.Commit(true) // its failure does not matter any more
		a.c.committed(d, a.p)
		a.reportServed(other)
	})
	cause := other.causeOf(f)
	other.end()
	l.End()
	d.Done()
	a.c.usage.PrefillDone = nil
	a.reportServed(other)
	if other.served {
		a.p.Unfetched(other.heldUntil)
	}
	switch {
	case f == nil:
		return true
	case f.Begun:
		return a.c.decodeFailed(d, f)
	case cause != nil:
		a.p.Done()
		return a.c.prefillFailed(a.p, cause)
	}
	if f.Class == leg.Status4xx && !other.served {
		a.p.Refused() // its leg ended before it could refuse the prompt, too
	}
	if (other.served || reported(f)) && f.Taken {
		a.c.transferSpent(d, f)
	}
	return a.c.decodeFailed(d, f)
}

// reportServed reports prefill's success to health, once, when its leg is done, if possible at the
// commit. At the end of a stream, which may last for hours, the report would clear later strikes.
func (a *attempt) reportServed(other *partner) {
	select {
	case <-other.done:
		if other.served && !other.reported {
			other.reported = true
			a.c.r.attempts.served(a.p.Instance)
		}
	default:
	}
}

// partner is the prefill leg of a concurrent pair, which runs during its decode leg.
type partner struct {
	leg       *leg.Leg
	reported  bool          // by reportServed
	done      chan struct{} // closed when the fields below are final
	served    bool
	heldUntil time.Time // when prefill frees the KV cache of the prompt
	failure   *leg.Failure
}

// beginPartner sends the prefill leg. If that leg fails or its instance is removed before
// the commit, the decode leg is canceled: it would never be answered. That applies even
// after prefill has answered, because decode may still have to read from it.
func (a *attempt) beginPartner(decode *leg.Leg, out connector.Leg) *partner {
	other := &partner{
		leg:  a.c.r.Origin.Begin(a.p, a.c.prefillWait()),
		done: make(chan struct{}),
	}
	other.leg.Once = true
	context.AfterFunc(other.leg, func() { decode.CallOff(leg.ErrPartner) })
	release := a.c.r.Origin.HoldBody()
	unbound := a.c.move.bound(other.leg) // here, since decode's answer changes move
	go func() {
		defer close(other.done)
		answer, f := a.c.prefillOn(other.leg, a.pair.ID, out)
		unbound()
		release()
		if f != nil {
			other.failure = f
			other.leg.End()
			return
		}
		other.served, other.heldUntil = true, a.c.s.heldUntil(a.p, a.dialect)
		other.leg.ClearLimit()
		a.c.prefilled(a.p, answer)
		decode.PartnerDone()
	}()
	return other
}

// causeOf returns prefill's failure if it caused that of the decode leg, else nil.
func (o *partner) causeOf(decode *leg.Failure) *leg.Failure {
	switch {
	case decode == nil || decode.Class == leg.ClientGone:
		return nil
	case decode.Class != leg.PartnerFailed:
		// Decode may have noticed before the proxy that its partner was removed.
		select {
		case <-o.done:
			return o.failure
		default:
			return nil
		}
	}
	<-o.done // its leg has ended
	if o.failure == nil {
		o.failure = o.leg.JudgeCallOff(context.Cause(o.leg)) // it had answered, and its instance was removed
	}
	return o.failure
}

// end ends the leg and waits for its goroutine.
func (o *partner) end() {
	o.leg.End()
	<-o.done
}
