package flow

import (
	"errors"
	"slices"
	"time"

	"github.com/pdmesh/pdmesh/internal/engine/catalog"
	"github.com/pdmesh/pdmesh/internal/forward/leg"
	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/internal/sched"
	"github.com/pdmesh/pdmesh/internal/transport/certs"
)

// attempts records the instances that were tried for one request, and which may still be
// tried. It belongs to one goroutine.
type attempts struct {
	s      *Settings
	origin *leg.Origin
	wanted sched.Request // common to all picks of the request

	tried       byRole[[]instance.Key]
	triedRanks  byRole[[]sched.Target] // ranks that were tried, of instances with several
	secondRound byRole[bool]           // all instances of the role were tried once
	// avoided are picked only if there is no other instance. They are prefill instances from
	// which a decode instance may have failed to read; decode instances that lost the stream or
	// get another attempt without a KV transfer; and, in both roles, engines that were full.
	avoided     byRole[[]instance.Key]
	promptIDs   bool // the legs carry a chat's prompt as token ids; engines that ignore those are not picked
	lost        bool // a decode instance has lost the stream
	lostTwice   bool // the same one lost it twice: prefer those that need another partner
	lastFailure *leg.Failure
	counted     int // failed legs that count against MaxAttempts
	// overtaken reports whether a leg was canceled because later legs had overtaken it. No
	// further leg is canceled for that reason: the request itself may be slow.
	overtaken bool
	// suspects are instances that failed this request. They get a strike when another instance serves it.
	suspects []suspect
}

// byRole holds one value for each role.
type byRole[T any] struct{ prefill, decode T }

func (b *byRole[T]) of(r instance.Role) *T {
	if r == instance.Prefill {
		return &b.prefill
	}
	return &b.decode
}

type suspect struct {
	in     *instance.Instance
	class  leg.Class
	reason string // for the strike
}

// secondRoundWait is the approximate wait before a request tries the same instances again.
const secondRoundWait = 50 * time.Millisecond

// pick chooses an instance that this request has not tried. When all have been tried, they may be tried
// once more after a short wait, unless all failures were refused connections. A single instance that
// broke one connection can still serve (TestSecondRoundAfterMixedFailures). If the untried decode
// instances cannot be paired with the partner, other prefill instances are tried before the second round.
func (t *attempts) pick(role instance.Role, partner *sched.Assignment) (*sched.Assignment, error) {
	if avoided := *t.avoided.of(role); len(avoided) > 0 {
		a, err := t.pickOnce(role, partner, avoided...)
		if err == nil {
			return a, nil
		}
		if t.lostTwice && role == instance.Decode && mismatchReason(err) != "" {
			return nil, err
		}
	}
	a, err := t.pickOnce(role, partner)
	if err == nil || !errors.Is(err, sched.ErrNone) {
		return a, err
	}
	if !t.maySecondRound(role) || partner != nil && !t.secondRound.prefill && mismatchReason(err) != "" {
		return nil, err
	}
	*t.secondRound.of(role) = true
	t.forgetTried(role)
	if !pauseBeforeRetry(t.origin.Client) {
		return nil, t.origin.Client.Err()
	}
	return t.pickOnce(role, partner)
}

// pickTentative is pick without a partner, for a leg that might not be sent.
func (t *attempts) pickTentative(role instance.Role) (*sched.Assignment, error) {
	t.wanted.Tentative = true
	a, err := t.pick(role, nil)
	t.wanted.Tentative = false
	return a, err
}

// pickAny chooses a single instance to serve the request (sched.Request.Alone). Instances
// are tried once more, as in pick, only after all of both roles; if the request generates,
// decode instances come before untried prefill instances. The lists of models are read
// again only if no usable instance of either role lists the model.
func (t *attempts) pickAny(generates bool) (*sched.Assignment, error) {
	a, err := t.pickAnyOnce(generates)
	switch {
	case errors.Is(err, sched.ErrModelAbsent):
		t.s.Models.Find(t.origin.Client, t.wanted.Model)
	case errors.Is(err, sched.ErrNone) && (t.maySecondRound(instance.Decode) || t.maySecondRound(instance.Prefill)):
		t.secondRound = byRole[bool]{true, true}
		t.forgetTried(instance.Decode)
		t.forgetTried(instance.Prefill)
		if !pauseBeforeRetry(t.origin.Client) {
			return nil, t.origin.Client.Err()
		}
	default:
		return a, err
	}
	return t.pickAnyOnce(generates)
}

// pickAnyOnce chooses an untried decode instance that may serve decode-only. If there is none, it
// chooses a prefill instance, unless the request generates and decode instances may be tried again.
func (t *attempts) pickAnyOnce(generates bool) (*sched.Assignment, error) {
	for {
		a, err := t.pickOnce(instance.Decode, nil)
		if errors.Is(err, sched.ErrNone) {
			if generates && t.maySecondRound(instance.Decode) {
				return nil, sched.ErrNone
			}
			p, none := t.pickOnce(instance.Prefill, nil)
			if errors.Is(none, sched.ErrModelAbsent) {
				none = err
			}
			return p, none
		}
		if err != nil || !t.s.needsPrefill(a) {
			return a, err
		}
		a.Done()
		t.skip(a.Instance)
	}
}

// pickOnce chooses an instance that this request has not tried and that is not in without.
func (t *attempts) pickOnce(role instance.Role, partner *sched.Assignment, without ...instance.Key) (*sched.Assignment, error) {
	span := t.origin.Trace.Pick(string(role))
	r := t.wanted
	r.Role, r.Partner = role, partner
	r.Tried, r.TriedRanks = *t.tried.of(role), *t.triedRanks.of(role)
	if t.promptIDs {
		without = slices.Concat(without, ignorePromptIDs(t.s.Picker.Members()))
	}
	if len(without) > 0 {
		r.Tried = slices.Concat(r.Tried, without)
	}
	a, err := t.choose(r)
	switch {
	case span == nil:
	case err != nil:
		span.Picked(err, "", "")
	default:
		span.Picked(nil, a.Address(), a.Policy)
	}
	return a, err
}

// choose waits for the membership and picks an instance.
func (t *attempts) choose(r sched.Request) (*sched.Assignment, error) {
	if t.s.AwaitMembership != nil {
		if t.s.AwaitMembership(t.origin.Client); t.origin.Client.Err() != nil {
			return nil, t.origin.Client.Err()
		}
	}
	a, err := t.s.Picker.Pick(r)
	if errors.Is(err, sched.ErrUnknownModel) || errors.Is(err, sched.ErrModelAbsent) && !r.Unpaired {
		t.s.Models.Find(t.origin.Client, r.Model)
		a, err = t.s.Picker.Pick(r) // even if Find did not find it: the other role may serve it
	}
	return a, err
}

// skip excludes an instance from further picks.
func (t *attempts) skip(in *instance.Instance) {
	tried := t.tried.of(in.Role)
	*tried = append(*tried, in.Key)
}

// forgetTried allows the instances of a role to be tried again.
func (t *attempts) forgetTried(role instance.Role) {
	*t.tried.of(role), *t.triedRanks.of(role) = nil, nil
}

// unmarkTried allows the instance of a pick to be tried again, because it did not fail itself. It
// copies the lists, which the scheduler may still read for an earlier pick.
func (t *attempts) unmarkTried(a *sched.Assignment) {
	tried, ranks := t.tried.of(a.Instance.Role), t.triedRanks.of(a.Instance.Role)
	*tried = slices.DeleteFunc(slices.Clone(*tried), func(k instance.Key) bool { return k == a.Instance.Key })
	*ranks = slices.DeleteFunc(slices.Clone(*ranks), func(r sched.Target) bool { return r.Key == a.Instance.Key })
}

// skipFailed excludes the failed part from further picks: the instance, or only the rank of
// the leg if the instance has several and the class is not OfInstance. After RankMissing,
// it also excludes the ranks above: the engine has started with fewer.
func (t *attempts) skipFailed(a *sched.Assignment, class leg.Class) {
	n := a.Instance.Ranks()
	if n == 1 || class.OfInstance() {
		t.skip(a.Instance)
		return
	}
	ranks := t.triedRanks.of(a.Instance.Role)
	if class != leg.RankMissing {
		n = a.Rank + 1
	}
	for rank := a.Rank; rank < n; rank++ {
		*ranks = append(*ranks, sched.Target{Key: a.Instance.Key, Rank: rank})
	}
}

// maySecondRound reports whether the instances of a role that were tried may be tried once more.
func (t *attempts) maySecondRound(role instance.Role) bool {
	return len(*t.tried.of(role))+len(*t.triedRanks.of(role)) > 0 && !*t.secondRound.of(role) && t.mayTryAgain()
}

// mayTryAgain reports whether instances that failed may be tried once more. They may not if all
// failures were refused connections, nor after a time limit: the request has waited long enough for
// them. A connection timeout is not a refusal, and a removed instance may be back as a new process.
func (t *attempts) mayTryAgain() bool {
	if t.lastFailure != nil && (t.lastFailure.Class == leg.ConnectTimeout || t.lastFailure.Class == leg.Removed) {
		return true
	}
	return (t.counted > 0 || t.lost) && (t.lastFailure == nil || !t.lastFailure.Class.TimedOut())
}

// note blames the instance of a failed leg. It reports whether another attempt is
// allowed; if not, f.Answer is for the client.
func (t *attempts) note(a *sched.Assignment, f *leg.Failure) bool {
	in := a.Instance
	t.lastFailure = f
	t.overtaken = t.overtaken || f.Class == leg.Overtaken
	if f.Class != leg.TransferExpired { // the KV transfer is at fault, not the instance
		t.skipFailed(a, f.Class)
	}
	if f.Class == leg.Status4xx {
		a.Refused()
	}
	if f.Class == leg.Busy {
		for _, role := range instance.Roles() {
			avoided := t.avoided.of(role)
			*avoided = append(*avoided, instance.Key{Role: role, Address: in.Address})
		}
	}
	blame := f.Rule.Blame
	if f.Class == leg.ModelMissing {
		switch t.s.Models.Confirm(t.origin.Client, in, t.wanted.Model) {
		case catalog.Broken:
		case catalog.Unloaded:
			blame, f.Rule.Free = leg.BlameNone, true // it is not picked for this model any more
		case catalog.Unclear:
			blame = leg.BlameNone
		}
	}
	switch blame {
	case leg.BlameEject:
		t.s.Health.Eject(in, "cannot connect: "+f.Err.Error())
	case leg.BlameStrike:
		reason := string(f.Class)
		if refused, ok := errors.AsType[*certs.Error](f.Err); ok {
			reason = "no TLS: " + refused.Text
		}
		t.suspects = append(t.suspects, suspect{in, f.Class, reason})
	case leg.BlameNone, leg.BlameConfig:
	}
	if !f.Rule.Retry {
		return false
	}
	if !f.Rule.Free {
		if t.counted++; t.counted >= t.s.MaxAttempts {
			return false
		}
		if !t.s.Budget.Take(t.s.Picker.InFlight(in.Key)) {
			if f.Class != leg.Busy {
				f.Answer = leg.ProxyError(leg.BudgetSpent())
			}
			return false
		}
	}
	t.s.Recorder.Retried(in.Role, f.Class)
	t.s.Log.WithError(f.Err).WithField("request_id", t.origin.ID).Debug("leg failed, trying another instance")
	return true
}

// served reports the success of an instance to health, and a strike for each suspect of the
// same role, because another instance has served the request.
func (t *attempts) served(in *instance.Instance) {
	t.s.Health.Success(in, t.wanted.Model)
	rest := t.suspects[:0]
	for _, s := range t.suspects {
		if s.in.Role != in.Role || s.in.Key == in.Key {
			rest = append(rest, s)
			continue
		}
		t.s.Health.Strike(s.in, t.wanted.Model, s.reason, s.class.TimedOut())
	}
	t.suspects = rest
}
