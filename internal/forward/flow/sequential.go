package flow

import (
	"time"

	"github.com/pdmesh/pdmesh/internal/connector"
	"github.com/pdmesh/pdmesh/internal/forward/bypass"
	"github.com/pdmesh/pdmesh/internal/forward/leg"
	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/internal/sched"
)

// maxExpired is the number of decode legs of a request that may end with TransferExpired
// before it becomes decode-only.
const maxExpired = 3

// withoutTransfer reports whether prefill's answer had no transfer params, so that decode
// computes the prompt again.
func (a *attempt) withoutTransfer() bool { return !a.dialect.SharesPool() && a.transfer.Empty() }

// singleUse reports whether a single decode instance may read the KV transfer, and only while
// prefill holds the blocks for it.
func (a *attempt) singleUse() bool { return !a.dialect.SharesPool() && !a.transfer.Empty() }

// runSequential runs prefill, then decode with the transfer params from prefill.
func (a *attempt) runSequential() (done bool) {
	a.pair = a.c.newPair(a.p, nil)
	if f := a.prefill(); f != nil {
		a.p.Done()
		return a.c.prefillFailed(a.p, f)
	}
	done = a.decode()
	if a.singleUse() {
		a.p.Unfetched(a.heldUntil)
	}
	return done
}

// prefill lets the prefill instance compute the prompt, and reads the transfer params.
func (a *attempt) prefill() *leg.Failure {
	l := a.c.r.Origin.Begin(a.p, a.c.prefillWait())
	defer l.End()
	defer a.c.move.bound(l)()
	answer, f := a.c.prefillOn(l, a.pair.ID, a.dialect.Prefill(a.c.reqFor(a.p.Instance), a.pair))
	if f != nil {
		return f
	}
	a.budget, a.heldUntil = a.c.s.transferBudget(a.dialect.Terms(a.p.Instance).Lease), a.c.s.heldUntil(a.p, a.dialect)
	a.decodeBy = a.c.s.receivedFrom(l.Began).Add(a.budget.After)
	var err error
	if a.transfer, err = a.dialect.TransferParams(answer); err != nil {
		return l.JudgeBadAnswer(err.Error())
	}
	if a.c.s.RewriteHost {
		a.transfer.Params = connector.WithHost(a.transfer.Params, a.p.Instance)
	}
	if !a.dialect.SharesPool() {
		a.c.s.Recorder.Handed(a.p.Instance, !a.withoutTransfer())
		if a.withoutTransfer() && a.dialect.NeedsPrefill() {
			return l.JudgeBadAnswer("it has no transfer params")
		}
	}
	a.c.prefilled(a.p, answer)
	a.c.r.attempts.served(a.p.Instance)
	return nil
}

// decode tries decode instances with the KV transfer, one after another. done reports
// whether the request has been answered; if not, it requires a new prefill.
func (a *attempt) decode() (done bool) {
	for again := false; ; again = true {
		if a.singleUse() {
			if why := a.unusable(again); why != "" {
				a.c.s.Recorder.Retried(instance.Prefill, why)
				return false
			}
		}
		d, err := a.c.r.attempts.pick(instance.Decode, a.p)
		if err != nil {
			return a.c.withoutPartner(a.p, err)
		}
		a.pair.Decode, a.pair.DecodeRank = d.Instance, d.Rank
		if why := unfit(a.dialect, a.c.req, a.pair); why != "" && a.dialect.NeedsPrefill() {
			d.Done()
			a.c.r.Route.DecodeOnly = why
			a.c.refuseDecodeOnly()
			return true
		}
		f := a.decodeWith(d)
		if f == nil {
			return true
		}
		if f.Class == leg.PartnerFailed { // the blocks of the KV transfer were freed
			a.c.s.Recorder.Retried(instance.Prefill, leg.Removed)
			return false
		}
		f.Taken = f.Taken || f.Refused() && a.dialect.Terms(d.Instance).RefusalSpends
		if f.Taken && !f.Begun && a.singleUse() {
			a.c.transferSpent(d, f)
		}
		if f.Class == leg.TransferExpired {
			a.c.expired++
		}
		if a.c.decodeFailed(d, f) {
			return true
		}
		if f.Begun {
			return false // the stream is continued from another prompt
		}
		if f.Class == leg.TransferExpired && a.c.expired >= maxExpired && a.c.s.Fallback && !a.dialect.NeedsPrefill() {
			// Decode's queue is longer than the lease: without a KV transfer the request can
			// wait there.
			a.p.Unfetched(a.heldUntil)
			a.p.Done()
			a.c.runDecodeOnly(nil, bypass.LeaseEnded)
			return true
		}
		if a.c.transfersLost() {
			return false
		}
		if a.dialect.SharesPool() {
			a.pair.ID = leg.EngineID(a.c.r.Origin.ID)
			continue
		}
		if f.Taken {
			// The KV transfer is spent. The prefill instance may be picked again, but
			// preferably not if decode may have failed to read from it.
			t := &a.c.r.attempts
			t.unmarkTried(a.p)
			if f.Class == leg.Status5xx || f.Class == leg.ErrorEvent || f.Class == leg.FirstByteTimeout || t.counted > 1 {
				t.avoided.prefill = append(t.avoided.prefill, a.p.Instance.Key)
			}
			return false
		}
	}
}

// decodeWith runs one decode leg. It ends the pick.
func (a *attempt) decodeWith(d *sched.Assignment) *leg.Failure {
	defer d.Done()
	a.c.r.notePick(d)
	a.pair.Decode, a.pair.DecodeRank = d.Instance, d.Rank
	transfer := a.transfer
	switch why := unfit(a.dialect, a.c.req, a.pair); {
	case why != "":
		// Decode would ignore the KV cache and compute the prompt, without reporting it.
		a.c.r.Route.DecodeOnly, transfer = why, connector.TransferParams{}
	case a.withoutTransfer():
		a.c.r.Route.DecodeOnly = bypass.NoTransfer
	default:
		a.c.r.Route.DecodeOnly = ""
	}
	w := a.c.decodeWait()
	if !transfer.Empty() && a.singleUse() {
		w.KVUntil, w.KVLimit, w.KVRenews = a.decodeBy, a.budget, a.dialect.Terms(d.Instance).Renews
	}
	l := a.c.r.Origin.Begin(d, w)
	defer l.End()
	if !w.KVUntil.IsZero() {
		l.Once = true
		a.watchPrefill(l)
		defer a.p.EndAwait()
	}
	return a.c.decodeOn(l, a.pair.ID, a.dialect.Decode(a.c.reqFor(a.pair.Decode), a.pair, transfer), func() {
		a.p.EndAwait()
		a.c.committed(d, a.p)
	})
}

// watchPrefill cancels a decode leg when the prefill instance whose blocks it must read is
// removed. If a restarted engine has the same id, decode would read other data from those
// blocks, without an error (TestRestartWhileDecodeWaits).
func (a *attempt) watchPrefill(decode *leg.Leg) {
	// Decode may read from an instance that is only slow, or refuses connections; its answer
	// says if it could not.
	check := func(error) {
		if a.c.s.Picker.Removed(a.p) != nil {
			decode.CallOff(leg.ErrSource)
		}
	}
	leg.RemovalFunc(check).Watch(a.p)
	check(nil) // if it was removed before Watch
	decode.Recheck = func() { check(nil) }
}

// unusable returns why a KV transfer must not be used any more, "" if it may be. Either its lease
// is about to end, which is checked only if again is set, or its prefill instance was removed.
func (a *attempt) unusable(again bool) leg.Class {
	switch {
	case again && time.Now().After(a.decodeBy):
		a.c.r.attempts.unmarkTried(a.p)
		return leg.TransferExpired
	case a.c.s.Picker.Removed(a.p) != nil:
		return leg.Removed
	}
	return ""
}
