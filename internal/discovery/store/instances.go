package store

import (
	"cmp"
	"context"
	"fmt"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/pdmesh/pdmesh/internal/discovery/etcd"
	"github.com/pdmesh/pdmesh/internal/discovery/schema"
	"github.com/pdmesh/pdmesh/internal/instance"
)

// AddOutcome is the outcome of an add.
type AddOutcome string

// The outcomes of adds.
const (
	Added        AddOutcome = "added"         // the record was written
	AlreadyThere AddOutcome = "already-there" // a record exists, static or leased, and was left alone
	Waiting      AddOutcome = "waiting"       // the add waits for its instance
)

// Instances adds and removes instances. A key of role instance.Both means both memberships.
type Instances struct{ *writer }

// Add writes a static record, which stays until it is removed. The facts in rec are the caller's; a
// record without models is verified by each proxy. An existing record, static or leased, is not
// changed, except that a static one of other proxies (Record.Proxies) is extended to rec's proxies.
// In all cases a removal is lifted, and a pending add ends, whose proxies get the instance too. For
// a key of role instance.Both, both memberships are added in one transaction; the outcome is Added
// if one of them was missing.
func (s *Instances) Add(ctx context.Context, k instance.Key, rec instance.Record, reason string) (AddOutcome, error) {
	return s.add(ctx, k, reason, Added, rec.Proxies, func(k instance.Key, proxies []string) (plan, error) {
		rec := rec
		rec.Proxies = proxies
		value, err := staticValue(k, rec, "admin")
		return plan{what: "add", ops: []clientv3.Op{clientv3.OpPut(s.layout.Instance(k), string(value))}}, err
	})
}

// add adds memberships for proxies. create plans a membership without a record, for these proxies
// and those of a pending add; outcome is the outcome of its plan.
func (s *Instances) add(ctx context.Context, k instance.Key, reason string, outcome AddOutcome, proxies []string, create func(instance.Key, []string) (plan, error)) (AddOutcome, error) {
	if err := checkKeys(k); err != nil {
		return "", err
	}
	outcomes := map[instance.Key]AddOutcome{}
	_, err := s.changeEach(ctx, k, reason, func(k instance.Key, f *etcd.Found) (plan, error) {
		proxies := withWaiting(k, proxies, f.Pending)
		p, err := create(k, proxies)
		if err != nil {
			return plan{}, err
		}
		outcomes[k] = outcome
		if f.Record != nil {
			wider, err := widened(k, f.Record, proxies)
			if err != nil {
				return plan{}, err
			}
			p = plan{what: p.what}
			if wider != nil {
				p.ops = append(p.ops, clientv3.OpPut(s.layout.Instance(k), string(wider)))
			}
			if wider == nil || outcome == Waiting {
				outcomes[k] = AlreadyThere
			}
		}
		if f.Pending != nil && outcomes[k] != Waiting {
			p.ops = append(p.ops, clientv3.OpDelete(s.layout.Pending(k)))
		}
		lift, err := s.liftRemoval(ctx, k, f, reason)
		p.ops = append(p.ops, lift...)
		return p, err
	})
	if err != nil {
		return "", err
	}
	for _, o := range outcomes {
		if o != AlreadyThere {
			return o, nil
		}
	}
	return AlreadyThere, nil // all of them
}

// checkKeys is like CheckKey, but also accepts instance.Both.
func checkKeys(k instance.Key) error {
	for _, one := range k.Each() {
		if err := CheckKey(one); err != nil {
			return err
		}
	}
	return nil
}

// CheckKey returns an error unless a key of an instance is spelled in the canonical way: another
// spelling would be a second key of the same membership.
func CheckKey(k instance.Key) error {
	if _, err := instance.ParseRole(string(k.Role)); err != nil {
		return err
	}
	canonical, err := instance.ParseAddress(k.Address)
	if err != nil {
		return err
	}
	if canonical != k.Address {
		return fmt.Errorf("%w %q: write %s", instance.ErrAddress, k.Address, canonical)
	}
	return nil
}

// StaticValue returns the value of a static record of an operator; the key must be canonical.
func StaticValue(k instance.Key, rec instance.Record) ([]byte, error) {
	if err := CheckKey(k); err != nil {
		return nil, err
	}
	return staticValue(k, rec, "admin")
}

// staticValue completes and encodes the record of a static instance.
func staticValue(k instance.Key, rec instance.Record, source string) ([]byte, error) {
	rec.Source = cmp.Or(rec.Source, source)
	if err := schema.FillRecord(k, &rec); err != nil {
		return nil, fmt.Errorf("add %s: %w", k, err)
	}
	return schema.EncodeRecord(rec)
}

// liftRemoval returns the operations that end a removal.
func (s *Instances) liftRemoval(ctx context.Context, k instance.Key, f *etcd.Found, reason string) ([]clientv3.Op, error) {
	if !f.Removed() {
		return nil, nil
	}
	o, _ := f.Wanted() // can be decoded: see Removed
	op, err := s.endState(ctx, k, o, reason)
	return []clientv3.Op{op}, err
}

// AddPending writes an add that waits until its instance answers; the first proxy that gets an
// answer promotes it. With a ttl it expires after that time. It replaces an earlier pending add of
// the instance, but keeps its proxies, and lifts a removal. If the instance is registered already,
// nothing waits, and a static record of other proxies is extended to p's, as by Add.
func (s *Instances) AddPending(ctx context.Context, k instance.Key, p schema.PendingAdd, ttl time.Duration, reason string) (AddOutcome, error) {
	p.V = cmp.Or(p.V, 1)
	p.By = cmp.Or(p.By, s.by(ctx))
	p.Reason = cmp.Or(p.Reason, reason)
	if p.Since == nil {
		p.Since = new(time.Now().UTC())
	}
	return s.add(ctx, k, reason, Waiting, p.FullRecord(k).Proxies, func(k instance.Key, proxies []string) (plan, error) {
		p := p
		if p.Record != nil {
			rec := *p.Record
			rec.Proxies = proxies
			p.Record = &rec
		}
		value, err := pendingValue(k, p)
		return plan{what: "wait", lease: ttl, timed: []keyValue{{s.layout.Pending(k), value}}}, err
	})
}

// pendingValue encodes a pending add of one membership.
func pendingValue(k instance.Key, p schema.PendingAdd) ([]byte, error) {
	if p.Record != nil {
		rec := *p.Record
		if err := schema.FillRecord(k, &rec); err != nil {
			return nil, fmt.Errorf("add %s: %w", k, err)
		}
		p.Record = &rec
	}
	return schema.Encode(p)
}

// Remove deletes the record of an instance and its pending add, and prevents its return until it is
// added again. Agents respect the removal and do not register. If etcd holds nothing of the
// instance, nothing is written and existed is false. Keys with another spelling of the address are
// deleted too. For a key of role instance.Both, both memberships are removed in one transaction;
// etcd must have either both or neither.
func (s *Instances) Remove(ctx context.Context, k instance.Key, reason string) (existed bool, err error) {
	return s.remove(ctx, k, reason, false)
}

// ForceRemove is like Remove, but also writes the removal of an instance that etcd does not hold:
// an orphan without a key, or an instance that a proxy keeps from a former store. existed reports
// whether etcd held anything. The key must be well formed.
func (s *Instances) ForceRemove(ctx context.Context, k instance.Key, reason string) (existed bool, err error) {
	if err := checkKeys(k); err != nil {
		return false, err
	}
	return s.remove(ctx, k, reason, true)
}

func (s *Instances) remove(ctx context.Context, k instance.Key, reason string, force bool) (existed bool, err error) {
	held, first := map[instance.Key]bool{}, k.Each()[0]
	_, err = s.changeEach(ctx, k, reason, func(k instance.Key, f *etcd.Found) (plan, error) {
		if k == first { // another try
			clear(held)
		}
		aliases, err := s.spellings(ctx, k)
		if err != nil {
			return plan{}, err
		}
		f.Aliases = aliases
		held[k] = f.Record != nil || f.Pending != nil || len(f.Aliases) > 0
		if other, decided := held[k.Other()]; decided && !force && other != held[k] {
			role := k.Role
			if other {
				role = k.Role.Other()
			}
			return plan{}, oneRole(k.Address, role)
		}
		if f.Override == nil {
			if err := s.kept(ctx, schema.KindOverride, k); err != nil {
				return plan{}, err
			}
		}
		switch {
		case !held[k] && f.Removed():
			return plan{}, nil
		case !held[k] && !force:
			return plan{}, s.kept(ctx, schema.KindInstance, k)
		}
		p := plan{what: "remove"}
		if CheckKey(k) == nil { // an instance with a bad address cannot return
			value, err := s.removal(ctx, f, reason)
			if err != nil {
				return plan{}, err
			}
			p.ops = append(p.ops, clientv3.OpPut(s.layout.Override(k), string(value)))
		}
		if f.Record != nil {
			p.ops = append(p.ops, clientv3.OpDelete(s.layout.Instance(k)))
		}
		if f.Pending != nil {
			p.ops = append(p.ops, clientv3.OpDelete(s.layout.Pending(k)))
		}
		for _, kv := range f.Aliases {
			p.ops = append(p.ops, clientv3.OpDelete(string(kv.Key)))
		}
		return p, nil
	})
	for _, h := range held {
		existed = existed || h
	}
	return existed, err
}

// Allow ends a removal, so that an agent that was refused because of it can register again. An
// existing record, which may have been written in spite of the removal, is not changed. removed
// reports whether there was a removal. The key must be well formed.
func (s *Instances) Allow(ctx context.Context, k instance.Key, reason string) (removed bool, err error) {
	if err := CheckKey(k); err != nil {
		return false, err
	}
	err = s.change(ctx, k, reason, func(f *etcd.Found) (plan, error) {
		if removed = f.Removed(); f.Override == nil {
			return plan{}, s.kept(ctx, schema.KindOverride, k)
		}
		lift, err := s.liftRemoval(ctx, k, f, reason)
		return plan{what: "allow", ops: lift}, err
	})
	return removed, err
}

// removal returns the override of a removed instance. A weight that was set before stays, unless it
// was temporary: the removal is not.
func (s *Instances) removal(ctx context.Context, f *etcd.Found, reason string) ([]byte, error) {
	o := schema.Override{V: 1, State: instance.Removed, Reason: reason, By: s.by(ctx)}
	if old, err := f.Wanted(); err == nil && !f.Temporary() {
		o.Weight = old.Weight
	}
	return schema.Encode(o)
}
