package store

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/pdmesh/pdmesh/internal/discovery/etcd"
	"github.com/pdmesh/pdmesh/internal/discovery/schema"
	"github.com/pdmesh/pdmesh/internal/instance"
)

// Intents writes the intents of operators for instances: drain, cordon, weight and role.
type Intents struct{ *writer }

// ErrIntent is wrapped by the error of an intent that conflicts with the present intent.
var ErrIntent = errors.New("not done")

// minIntent is the shortest duration of a temporary intent: with default settings, etcd grants
// no leases of less than two seconds.
const minIntent = 2 * time.Second

// IntentOptions are the options of an intent.
type IntentOptions struct {
	Reason string
	// For is the duration of the intent, after which its key expires with its lease; 0 means
	// until it is lifted.
	For time.Duration
	// MoveAfter is the time from the start of a drain after which running streams move; nil: they
	// stay.
	MoveAfter *time.Duration
	// Force allows an intent for an instance that etcd does not hold, such as an orphan, and a
	// change of role that leaves a role without an instance.
	Force bool

	// The following are for changes of a role.

	// Auto lets proxies change the role again (--auto-roles).
	Auto bool
	// Fits returns why an engine can't serve in a role; nil: it is not checked.
	Fits func(instance.Key, instance.Record) error
	// Since is the revision of the last change of a role (LastMove) that a proxy's decision is based
	// on. With it, an instance with an operator's intent is refused. nil for an operator.
	Since *int64
	// role is the role that a change of role sets, "" for other intents. instance.Both is allowed
	// for an engine with one membership in etcd, if that has an override with a role.
	role instance.Role
}

// IntentResult is the outcome of a change of an intent, combined over all memberships of the key.
type IntentResult struct {
	// Known reports whether etcd holds anything of the instance. If not, nothing was written.
	Known bool
	// Changed reports whether something was written. If not, etcd had this intent already.
	Changed bool
	// Was is the previous intent, "" for none.
	Was instance.Intent
	// Role is the previous Override.Role, "" for none.
	Role instance.Role
	// Revision is the revision that a proxy must have applied to know the intent, 0 for none.
	Revision int64
	// Read is the revision of the read on which the result is based.
	Read int64
}

// add adds the result for one membership.
func (i *IntentResult) add(f *etcd.Found, was schema.Override) {
	i.Known, i.Read = i.Known || known(f), f.Revision
	i.Was, i.Role = cmp.Or(was.State, i.Was), cmp.Or(was.Role, i.Role)
	if f.Override != nil {
		i.Revision = max(i.Revision, f.Override.ModRevision)
	}
}

// known reports whether etcd holds anything of an instance.
func known(f *etcd.Found) bool {
	return f.Record != nil || f.Pending != nil || f.Override != nil || len(f.Aliases) > 0
}

// Change makes the change that verb names, like a command of pdctl or a route of proxies. weight is
// for "weight"; for "role", the key has the role in which the engine is kept.
func (s *Intents) Change(ctx context.Context, k instance.Key, verb string, weight *int, w IntentOptions) (IntentResult, error) {
	switch verb {
	case "drain", "cordon":
		return s.Intend(ctx, k, instance.Intent(verb), w)
	case "undrain", "uncordon":
		return s.Lift(ctx, k, instance.Intent(strings.TrimPrefix(verb, "un")), w.Reason)
	case "weight":
		return s.SetWeight(ctx, k, weight, w)
	case "role":
		return s.SetRole(ctx, k.Address, k.Role, w)
	}
	return IntentResult{}, fmt.Errorf("%w: unknown verb %q", ErrIntent, verb)
}

// Intend drains or cordons an instance, so that no proxy picks it any more: state is instance.Drain
// or instance.Cordon. It replaces an earlier drain or cordon; a weight stays. A key of role
// instance.Both means both memberships, of which etcd must know either both or neither.
func (s *Intents) Intend(ctx context.Context, k instance.Key, state instance.Intent, w IntentOptions) (IntentResult, error) {
	if state != instance.Drain && state != instance.Cordon {
		return IntentResult{}, fmt.Errorf("%w: %s is neither drain nor cordon", ErrIntent, state)
	}
	return s.intend(ctx, k, w, func(k instance.Key, f *etcd.Found, o schema.Override, unread error) (plan, error) {
		switch {
		case unread != nil:
			o = schema.Override{V: 1} // the former value had no effect
		case o.State == instance.Removed:
			return plan{}, fmt.Errorf("%w: %s is removed, no proxy uses it; pdctl allow or pdctl add lifts that", ErrIntent, k)
		case o.State == state && o.Role == "" && w.For == 0 && !f.Temporary() && (w.Reason == "" || w.Reason == o.Reason) && w.MoveAfter == nil:
			return plan{}, nil
		case o.Weight != nil && (w.For > 0 || f.Temporary()):
			return plan{}, weighted(k, f, *o.Weight)
		}
		o.State, o.Reason, o.By, o.MoveAfter, o.Role, o.Auto = state, w.Reason, s.by(ctx), nil, "", false
		if w.MoveAfter != nil {
			o.MoveAfter = new(int(w.MoveAfter.Seconds()))
		}
		return s.override(k, o, w.For, string(state))
	})
}

// Lift ends an intent: state is instance.Drain or instance.Cordon, and must be the one
// that is set. A weight that was set stays.
func (s *Intents) Lift(ctx context.Context, k instance.Key, state instance.Intent, reason string) (IntentResult, error) {
	var other error
	lifted := false
	first := k.Each()[0]
	done, err := s.intend(ctx, k, IntentOptions{Reason: reason}, func(k instance.Key, _ *etcd.Found, o schema.Override, unread error) (plan, error) {
		if k == first { // another try
			other, lifted = nil, false
		}
		switch {
		case unread != nil:
			return plan{}, fmt.Errorf("the override of %s: %w", k, unread)
		case o.State == "":
			return plan{}, nil
		case o.State != state:
			other = fmt.Errorf("%w: %s is %s", ErrIntent, k, standing(o.State))
			return plan{}, nil
		}
		lifted = true
		p, err := s.lifted(ctx, k, o, reason, "un"+string(state))
		if err != nil || o.Role == "" {
			return p, err
		}
		last, err := s.lastMove(ctx)
		if err == nil {
			err = s.move(&p, last, schema.Move{V: 1, Role: instance.Both, Address: k.Address, By: s.by(ctx), Reason: reason})
		}
		return p, err
	})
	if err == nil && !lifted {
		err = other
	}
	return done, err
}

// lifted returns the plan that ends the state of an override. A weight stays.
func (s *Intents) lifted(ctx context.Context, k instance.Key, o schema.Override, reason, what string) (plan, error) {
	op, err := s.endState(ctx, k, o, reason)
	return plan{what: what, ops: []clientv3.Op{op}}, err
}

// weighted returns the error of an intent for an instance that has a weight, if one of the two is temporary.
func weighted(k instance.Key, f *etcd.Found, weight int) error {
	if f.Temporary() {
		return fmt.Errorf("%w: %s has a weight of %d with a time limit, which both would share; undo the weight first", ErrIntent, k, weight)
	}
	return fmt.Errorf("%w: %s has a weight of %d set by an operator, which would end at the same time; undo the weight first, or leave out the time", ErrIntent, k, weight)
}

// standing describes the intent that is set, and how to lift it.
func standing(state instance.Intent) string {
	switch state {
	case instance.Drain:
		return "drained; undrain lifts that"
	case instance.Cordon:
		return "cordoned; uncordon lifts that"
	default:
		return "removed; pdctl allow or pdctl add lifts that"
	}
}

// SetWeight sets the weight of an instance for every proxy, in place of that of its record; nil
// ends that. A drain or cordon stays.
func (s *Intents) SetWeight(ctx context.Context, k instance.Key, weight *int, w IntentOptions) (IntentResult, error) {
	if weight != nil && !instance.ValidWeight(*weight) {
		return IntentResult{}, fmt.Errorf("%w: invalid weight %d: must be between 0 and %d", ErrIntent, *weight, instance.MaxWeight)
	}
	if weight == nil {
		w.For = 0
	}
	return s.intend(ctx, k, w, func(k instance.Key, f *etcd.Found, o schema.Override, unread error) (plan, error) {
		switch {
		case unread != nil:
			return plan{}, fmt.Errorf("the override of %s: %w", k, unread)
		case weight == nil && o.Weight == nil:
			return plan{}, nil
		case o.State != "" && weight != nil && (w.For > 0 || f.Temporary()):
			remedy := "lift it first"
			if !f.Temporary() {
				remedy += ", or leave out the time"
			}
			return plan{}, fmt.Errorf("%w: %s is %s, and the weight would end together with that; %s", ErrIntent, k, standing(o.State), remedy)
		case weight != nil && w.For == 0 && !f.Temporary() && o.Weight != nil && *o.Weight == *weight && (w.Reason == "" || w.Reason == o.Reason):
			return plan{}, nil
		}
		if o.Weight = weight; o.State == "" {
			o.Reason, o.By = w.Reason, s.by(ctx)
		}
		if o.State == "" && weight == nil {
			return plan{what: "weight", ops: []clientv3.Op{clientv3.OpDelete(s.layout.Override(k))}}, nil
		}
		p, err := s.override(k, o, w.For, "weight")
		p.weight = weight
		return p, err
	})
}

// oneRole returns the error of a change in both roles of an engine that is registered in one.
func oneRole(address string, role instance.Role) error {
	return fmt.Errorf("%w: %s is registered as %s only: name that role instead of %s, or register the engine in both roles", ErrIntent, address, role, instance.Both)
}

// override returns the plan that writes an override for limit; 0 means until it is lifted.
func (s *Intents) override(k instance.Key, o schema.Override, limit time.Duration, what string) (plan, error) {
	o.V = 1
	value, err := schema.Encode(o)
	return plan{what: what, lease: limit, timed: []keyValue{{s.layout.Override(k), value}}}, err
}

// intend changes the overrides of k, unless proxies keep one of a former etcd. decide plans each
// change by the current value o; unread is the error if o could not be decoded.
func (s *Intents) intend(ctx context.Context, k instance.Key, w IntentOptions, decide func(k instance.Key, f *etcd.Found, o schema.Override, unread error) (plan, error)) (IntentResult, error) {
	if err := checkKeys(k); err != nil {
		return IntentResult{}, err
	}
	if w.For != 0 && w.For < minIntent {
		return IntentResult{}, fmt.Errorf("%w: for %s; %s at least", ErrIntent, w.For, minIntent)
	}
	var done IntentResult
	var roles []instance.Role // that etcd knows, of role instance.Both
	first, both := k.Each()[0], k.Role == instance.Both && !w.Force
	revision, err := s.changeEach(ctx, k, w.Reason, func(k instance.Key, f *etcd.Found) (plan, error) {
		if k == first { // another try
			done, roles = IntentResult{}, nil
		}
		if !known(f) {
			aliases, err := s.spellings(ctx, k)
			if err != nil {
				return plan{}, err
			}
			f.Aliases = aliases
		}
		if f.Override == nil {
			if err := s.kept(ctx, schema.KindOverride, k); err != nil {
				return plan{}, err
			}
		}
		o, unread := f.Wanted()
		done.add(f, o)
		if known(f) {
			roles = append(roles, k.Role)
		}
		if both && k != first && len(roles) == 1 && !(w.role == instance.Both && done.Role != "") {
			if w.role != "" {
				return plan{}, fmt.Errorf("%w: %s is registered as %s only: its role can be changed only if it is registered in both roles (--role both)", ErrIntent, k.Address, roles[0])
			}
			return plan{}, oneRole(k.Address, roles[0])
		}
		if !known(f) && !w.Force && w.role != instance.Both {
			return plan{}, s.kept(ctx, schema.KindInstance, k)
		}
		return decide(k, f, o, unread)
	})
	if err != nil {
		return IntentResult{}, err
	}
	if revision > 0 {
		done.Changed, done.Revision = true, revision
	}
	return done, nil
}
