package flow

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/pdmesh/pdmesh/internal/alone"
	"github.com/pdmesh/pdmesh/internal/connector"
	"github.com/pdmesh/pdmesh/internal/forward/leg"
	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/internal/sched"
)

// notified is the flow of a pair whose prefill notifies the proxy when decode has the KV
// cache.
type notified struct{ *completion }

// run runs prefill, waits until each of its ranks has notified that decode has the KV
// cache, and runs decode. Before the last notification decode must not begin: it would
// read memory that is not filled yet, without an error (TestNotificationLost). The KV cache
// goes to one decode instance, so that a failure of either leg needs a new pair. done reports whether the
// request has been answered; if not, another pair is due.
func (c notified) run(p *sched.Assignment, dialect connector.Dialect) (done bool) {
	switch {
	case c.s.Notifications == nil || c.s.Notifications.CannotHear(p.Instance) != nil:
		p.Done()
		c.runAlone(alone.NotHeard)
		return true
	case c.unnotified.failures >= maxNotifyFailures && c.s.Fallback:
		p.Done()
		c.runAlone(alone.NotNotified)
		return true
	case slices.Contains(c.unnotified.keys, p.Instance.Key):
		c.attempts.skip(p.Instance)
		return false
	case c.s.unnotified.bypassed(p.Instance):
		c.unnotified.keys = append(c.unnotified.keys, p.Instance.Key)
		c.attempts.skip(p.Instance)
		return false
	}
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
	c.Route.Alone = "" // an earlier attempt in another dialect may have set it
	ofPrefill, ofDecode := c.sendKV(p, d, pair, dialect)
	p.Done() // it has sent its KV cache, or failed
	switch {
	case ofPrefill != nil:
		return c.prefillFailed(p, ofPrefill)
	case ofDecode != nil:
		return c.decodeFailed(d, ofDecode)
	}
	l := c.Origin.Begin(d, c.decodeWait())
	f := c.decodeOn(l, pair.ID, dialect.Decode(c.req, pair, connector.Handover{}), dialect.Rewriter(connector.Handover{}),
		func() { c.committed(d, p) })
	l.End()
	d.Done()
	if f == nil {
		return true
	}
	c.s.Recorder.HandoverSpent(f.Class)
	return c.decodeFailed(d, f)
}

// sendKV has prefill compute the prompt and send its KV cache, and waits until it has
// arrived. A failure is of prefill, or of decode, which was gone before its leg began.
func (c notified) sendKV(p, d *sched.Assignment, pair connector.Pair, dialect connector.Dialect) (ofPrefill, ofDecode *leg.Failure) {
	l := c.Origin.Begin(p, c.prefillWait())
	defer l.End()
	watch := c.watchDecode(d, l)
	defer watch.end()
	out := dialect.Prefill(c.req, pair)
	heard := c.awaitNotifications(l, out.Awaits)
	answer, f := c.prefillOn(l, pair.ID, out)
	if f == nil {
		l.SetLimit(leg.NotifyLimit(c.notifyWait()))
		watch.awaitFrom(time.Now())
	} else {
		l.End()
	}
	switch all := <-heard; {
	case f != nil:
	case !all:
		f = l.JudgeCallOff(context.Cause(l))
	default:
		c.s.unnotified.arrived(p.Instance)
		c.prefilled(p, answer)
		c.attempts.served(p.Instance)
		return nil, nil
	}
	if gone := watch.gone(); gone != nil && f.Class != leg.ClientGone {
		return nil, c.Origin.JudgeGone(instance.Decode, gone)
	}
	if f.Class == leg.NotNotified {
		c.unnotified.failures++
		c.unnotified.keys = append(c.unnotified.keys, p.Instance.Key)
		c.s.unnotified.failed(p.Instance, c.s.Notifications.Address(p.Instance), f.Err)
	}
	return f, nil
}

// withoutNotice is what a request has found out about prefill instances whose notifications do
// not arrive.
type withoutNotice struct {
	keys     []instance.Key // not tried again
	failures int            // attempts whose notifications did not arrive
}

// notifyWait is how long the request may still wait for notifications. It spends one whole
// wait at most.
func (c notified) notifyWait() time.Duration {
	if c.unnotified.failures == 0 {
		return c.s.Notified
	}
	return min(c.s.Notified, secondNotifyWait)
}

// awaitNotifications begins to wait for the notifications of a prefill leg, before it is
// sent. The channel gets whether all have come. If they cannot be received the leg is
// called off.
func (c notified) awaitNotifications(l *leg.Leg, n connector.Notices) <-chan bool {
	heard := make(chan bool, 1)
	go func() {
		err := c.s.Notifications.Await(l, l.Instance, n.ID, n.Ranks)
		if err != nil {
			l.CallOff(fmt.Errorf("%w: %w", leg.ErrNotNotified, err))
		}
		heard <- err == nil
	}()
	return heard
}

// watchDecode calls a prefill leg off when the decode instance that its KV cache goes to is
// found gone: no answer of an engine would say so (TestNotifiedInstanceGone).
func (c notified) watchDecode(d *sched.Assignment, prefill *leg.Leg) *decodeWatch {
	w := &decodeWatch{pick: d, prefill: prefill}
	w.awaitFrom(time.Now().Add(owesNothing))
	if err := c.s.Picker.Gone(d); err != nil { // between the pick and Await
		w.CallOff(err)
	}
	return w
}

// owesNothing is added to the time from which an instance is awaited that has no request
// to answer yet, so that it never counts as silent: longer than any prefill.
const owesNothing = 365 * 24 * time.Hour

// decodeWatch watches a decode instance before its leg begins. It implements sched.Leg.
type decodeWatch struct {
	pick    *sched.Assignment
	prefill *leg.Leg

	mu  sync.Mutex // guards err
	err error
}

var _ sched.Leg = (*decodeWatch)(nil)

// CallOff implements sched.Leg.
func (w *decodeWatch) CallOff(cause error) {
	w.mu.Lock()
	if w.err == nil {
		w.err = cause
	}
	w.mu.Unlock()
	w.prefill.CallOff(leg.ErrPartner)
}

// Overtaken implements sched.Leg.
func (w *decodeWatch) Overtaken(int) {}

// Silent implements sched.Leg: prefill has its own limit.
func (w *decodeWatch) Silent(time.Duration) {}

// awaitFrom has sched treat the instance as one that keeps a request waiting since then. An
// instance that cannot be reached gets nothing from prefill either, and prefill does not
// say so.
func (w *decodeWatch) awaitFrom(since time.Time) { w.pick.Await(w, since) }

// gone reports why the instance is gone, nil if it is not.
func (w *decodeWatch) gone() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.err
}

func (w *decodeWatch) end() { w.pick.EndAwait() }
