package flow

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/pdmesh/pdmesh/internal/connector"
	"github.com/pdmesh/pdmesh/internal/forward/bypass"
	"github.com/pdmesh/pdmesh/internal/forward/leg"
	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/internal/sched"
)

// runNotified runs prefill, waits until each of its ranks has reported that decode has the
// KV cache, and runs decode. Decode must not begin before the last notification: it would
// read memory that is not filled yet, without an error (TestNotificationLost). The KV cache
// goes to one decode instance, so a failure of either leg requires a new pair.
func (a *attempt) runNotified() (done bool) {
	switch {
	case a.c.s.cannotReceive(a.p.Instance):
		a.c.unnotified.cannotReceive = true
		a.c.r.attempts.skip(a.p.Instance)
		return false
	case a.c.unnotified.failures >= maxNotifyFailures && a.c.s.Fallback:
		a.p.Done()
		a.c.runDecodeOnly(nil, bypass.NotNotified)
		return true
	case slices.Contains(a.c.unnotified.keys, a.p.Instance.Key) || a.c.s.unnotified.bypassed(a.p.Instance, true):
		a.c.unnotified.keys = append(a.c.unnotified.keys, a.p.Instance.Key)
		a.c.r.attempts.skip(a.p.Instance)
		return false
	}
	d, done := a.pickDecode()
	if d == nil {
		return done
	}
	defer d.Done()
	prefillFailure, decodeFailure := a.sendKV(d)
	a.p.Done() // it has sent its KV cache, or failed
	switch {
	case prefillFailure != nil:
		d.Done() // the request may become decode-only, perhaps on another instance
		return a.c.prefillFailed(a.p, prefillFailure)
	case decodeFailure != nil:
		return a.c.decodeFailed(d, decodeFailure)
	}
	l := a.c.r.Origin.Begin(d, a.c.decodeWait())
	f := a.c.decodeOn(l, a.pair.ID, a.dialect.Decode(a.c.reqFor(a.pair.Decode), a.pair, connector.TransferParams{}),
		func() { a.c.committed(d, a.p) })
	l.End()
	d.Done()
	if f == nil {
		return true
	}
	if !f.Begun {
		a.c.transferSpent(d, f)
	}
	return a.c.decodeFailed(d, f)
}

// cannotReceive reports whether the notifications of a prefill instance cannot be received.
func (s *Settings) cannotReceive(in *instance.Instance) bool {
	return s.Notifications == nil || s.Notifications.CannotReceive(in) != nil
}

// sendKV lets prefill compute the prompt and send its KV cache, and waits until that has
// arrived. decodeFailure is set if decode was removed before its leg began.
func (a *attempt) sendKV(d *sched.Assignment) (prefillFailure, decodeFailure *leg.Failure) {
	l := a.c.r.Origin.Begin(a.p, a.c.prefillWait())
	defer l.End()
	removed := a.watchDecode(d, l)
	defer d.EndAwait()
	out := a.dialect.Prefill(a.c.reqFor(a.p.Instance), a.pair)
	arrived := a.awaitNotifications(l, out.Awaits)
	unbound := a.c.move.bound(l)
	answer, f := a.c.prefillOn(l, a.pair.ID, out)
	unbound()
	if f == nil {
		l.SetLimit(leg.NotifyLimit(a.notifyWait()))
		d.Await(removed, time.Now()) // prefill sends nothing to an unreachable instance, and does not report that
	} else {
		l.End()
	}
	switch all := <-arrived; {
	case f != nil:
	case !all:
		f = l.JudgeCallOff(context.Cause(l))
	default:
		a.c.s.unnotified.arrived(a.p.Instance)
		a.c.prefilled(a.p, answer)
		a.c.r.attempts.served(a.p.Instance)
		return nil, nil
	}
	if why := a.decodeRemoved.Load(); why != nil && f.Class != leg.ClientGone {
		return nil, a.c.r.Origin.JudgeRemoved(instance.Decode, *why)
	}
	if f.Class == leg.NotNotified {
		a.c.unnotified.failures++
		a.c.unnotified.keys = append(a.c.unnotified.keys, a.p.Instance.Key)
		a.c.s.unnotified.failed(a.p.Instance, a.c.s.Notifications.Address(a.p.Instance), f.Err)
	}
	return f, nil
}

// notifyFindings has a request's findings about prefill instances whose notifications do not arrive.
type notifyFindings struct {
	keys          []instance.Key // not tried again
	failures      int            // attempts whose notifications did not arrive
	cannotReceive bool           // the notifications of an instance cannot be received
}

// notifyWait returns how long the request may still wait for notifications: only one wait
// may have the full length.
func (a *attempt) notifyWait() time.Duration {
	if a.c.unnotified.failures == 0 {
		return a.c.s.Notified
	}
	return min(a.c.s.Notified, secondNotifyWait)
}

// awaitNotifications starts to wait for the notifications of a prefill leg, before the leg is sent.
// The channel receives true if all have arrived. If they cannot be received, the leg is canceled.
func (a *attempt) awaitNotifications(l *leg.Leg, n connector.Notices) <-chan bool {
	arrived := make(chan bool, 1)
	go func() {
		err := a.c.s.Notifications.Await(l, l.Instance, n.ID, n.Ranks)
		if err != nil {
			l.CallOff(fmt.Errorf("%w: %w", leg.ErrNotNotified, err))
		}
		arrived <- err == nil
	}()
	return arrived
}

// watchDecode cancels a prefill leg when the decode instance that receives its KV cache is
// removed: no engine would report that (TestNotifiedInstanceRemoved).
func (a *attempt) watchDecode(d *sched.Assignment, prefill *leg.Leg) leg.RemovalFunc {
	w := leg.RemovalFunc(func(cause error) {
		a.decodeRemoved.CompareAndSwap(nil, &cause)
		prefill.CallOff(leg.ErrPartner)
	})
	w.Watch(d)
	if err := a.c.s.Picker.Removed(d); err != nil { // between the pick and Watch
		w(err)
	}
	return w
}
