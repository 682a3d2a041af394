package store

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/pdmesh/pdmesh/internal/discovery/etcd"
	"github.com/pdmesh/pdmesh/internal/discovery/lease"
	"github.com/pdmesh/pdmesh/internal/discovery/schema"
	"github.com/pdmesh/pdmesh/internal/instance"
)

// ErrMoved is wrapped by the error of an automatic change of a role if another change was made since
// the decision.
var ErrMoved = errors.New("another role was changed meanwhile")

// LastMove returns the mod revision of the key that holds the last change of a role, 0 if there was
// none.
func (s *Intents) LastMove(ctx context.Context) (int64, error) {
	kv, err := s.lastMove(ctx)
	return kv.GetModRevision(), err
}

func (w *writer) lastMove(ctx context.Context) (*mvccpb.KeyValue, error) {
	kvs, err := w.get(ctx, "read the last change of a role", w.layout.Moves())
	return etcd.Single(kvs), err
}

// Undigested returns the ids of the proxies that publish no load digest: those with digests off, of
// an older release, or that have just started.
func (s *Intents) Undigested(ctx context.Context) ([]string, error) {
	proxies, loads := s.layout.Proxy(""), s.layout.Load("")
	resp, err := s.txn(ctx, "list the proxies and their load digests", nil, []clientv3.Op{
		clientv3.OpGet(proxies, clientv3.WithPrefix(), clientv3.WithKeysOnly()),
		clientv3.OpGet(loads, clientv3.WithPrefix(), clientv3.WithKeysOnly()),
	})
	if err != nil {
		return nil, err
	}
	var ids []string
	for _, kv := range resp.Responses[0].GetResponseRange().Kvs {
		id := strings.TrimPrefix(string(kv.Key), proxies)
		if !slices.ContainsFunc(resp.Responses[1].GetResponseRange().Kvs, func(kv *mvccpb.KeyValue) bool { return string(kv.Key) == loads+id }) {
			ids = append(ids, id)
		}
	}
	return ids, nil
}

// SetRole restricts an engine of both roles to one of them, or lets it serve both again
// (instance.Both). In one transaction, it drains the other role with a marked override, and lifts
// such a drain of the role itself. An operator's drain, cordon or removal stays, and is an error.
func (s *Intents) SetRole(ctx context.Context, address string, role instance.Role, w IntentOptions) (IntentResult, error) {
	both := instance.Key{Role: instance.Both, Address: address}
	var last *mvccpb.KeyValue
	done, err := s.intend(ctx, both, IntentOptions{Reason: w.Reason, For: w.For, role: role}, func(k instance.Key, f *etcd.Found, o schema.Override, unread error) (p plan, err error) {
		if k.Role == instance.Prefill { // the first: it decides on the same revisions as the transaction
			if last, err = s.lastMove(ctx); err != nil {
				return plan{}, err
			}
			if w.Since != nil && last.GetModRevision() != *w.Since {
				return plan{}, fmt.Errorf("%w: %w", ErrIntent, ErrMoved)
			}
		}
		leaves := role != instance.Both && k.Role != role
		switch {
		case unread != nil:
			return plan{}, fmt.Errorf("the override of %s: %w", k, unread)
		case o.State != "" && o.Role == "":
			return plan{}, fmt.Errorf("%w: %s is %s", ErrIntent, k, standing(o.State))
		case o.Role != "" && !o.Auto && w.Since != nil:
			return plan{}, fmt.Errorf("%w: an operator has set the role of %s", ErrIntent, k.Address)
		case f.Record == nil && role != instance.Both:
			return plan{}, fmt.Errorf("%w: %s is not registered", ErrIntent, k)
		case k.Role == role && hasZeroWeight(k, f, o):
			return plan{}, fmt.Errorf("%w: %s has weight 0 and would get no requests; change its weight first", ErrIntent, k)
		case leaves:
			p, err = s.leave(ctx, k, f, o, role, w)
		default:
			p, err = s.serve(ctx, k, f, o, w)
		}
		if err == nil && (len(p.ops)+len(p.timed) > 0) {
			p.what = "role " + string(role)
			err = s.move(&p, last, schema.Move{V: 1, Role: role, Address: address, By: s.by(ctx), Reason: w.Reason, Auto: w.Auto})
		}
		return p, err
	})
	return done, err
}

// leave returns the plan that drains the role that an engine leaves.
func (s *Intents) leave(ctx context.Context, k instance.Key, f *etcd.Found, o schema.Override, role instance.Role, w IntentOptions) (plan, error) {
	switch {
	case o.Role == role && o.Auto == w.Auto && w.For == 0 && !f.Temporary() && (w.Reason == "" || w.Reason == o.Reason):
		return plan{}, nil
	case o.Weight != nil && (w.For > 0 || f.Temporary()):
		return plan{}, weighted(k, f, *o.Weight)
	case o.Role == "" && !w.Force:
		if err := s.last(ctx, k); err != nil {
			return plan{}, err
		}
	}
	o.State, o.Role, o.Auto, o.Reason, o.By, o.MoveAfter = instance.Drain, role, w.Auto, w.Reason, s.by(ctx), nil
	return s.override(k, o, w.For, "role "+string(role))
}

// serve returns the plan for a role that an engine serves: it lifts the drain of an earlier change
// of role.
func (s *Intents) serve(ctx context.Context, k instance.Key, f *etcd.Found, o schema.Override, w IntentOptions) (plan, error) {
	if f.Record != nil && w.Fits != nil {
		rec, _, err := schema.DecodeRecord(k, f.Record.Value)
		if err == nil {
			err = w.Fits(k, rec)
		}
		if err != nil {
			return plan{}, fmt.Errorf("%w: %s can't serve: %w", ErrIntent, k, err)
		}
	}
	if o.Role == "" {
		return plan{}, nil
	}
	return s.lifted(ctx, k, o, w.Reason, "role "+string(instance.Both))
}

// hasZeroWeight reports whether the weight of an instance is 0.
func hasZeroWeight(k instance.Key, f *etcd.Found, o schema.Override) bool {
	if o.Weight == nil && f.Record != nil {
		rec, _, _ := schema.DecodeRecord(k, f.Record.Value)
		o.Weight = rec.Weight
	}
	return o.Weight != nil && *o.Weight == 0
}

// last returns an error if an instance is the last one in its role that proxies use for one of its
// models, or, if no proxy knows its models, the last one of all. It must be called after lastMove:
// then it sees all changes on which the transaction depends.
func (s *Intents) last(ctx context.Context, k instance.Key) error {
	seen, err := s.seen(ctx)
	if err != nil {
		return err
	}
	if in, ok := seen.Lookup(k); ok && len(in.Record.Models) > 0 {
		for _, model := range in.Record.Models {
			if len(seen.Serving(k, []string{model})) == 0 {
				return fmt.Errorf("%w: no other usable %s instance serves %s", ErrIntent, k.Role, instance.Printable(model, 120))
			}
		}
		return nil
	}
	if !slices.ContainsFunc(seen.Usable(k.Role), func(in *instance.Instance) bool { return in.Address != k.Address }) {
		return fmt.Errorf("%w: no other usable %s instance", ErrIntent, k.Role)
	}
	return nil
}

// seen returns the fleet as it is seen by the proxies that publish their view. Those of older
// releases do not.
func (s *Intents) seen(ctx context.Context) (*instance.Snapshot, error) {
	r := &Reader{s.client}
	snap, err := r.Snapshot(ctx)
	if err != nil {
		return nil, err
	}
	proxies, err := r.Proxies(ctx)
	if err != nil {
		return nil, err
	}
	return lease.Seen(snap, slices.DeleteFunc(proxies, func(p lease.ProxyPresence) bool { return p.Unverified == nil && p.Instances == nil })), nil
}

// move adds to a plan the key that every change of a role writes, and its comparison.
func (w *writer) move(p *plan, last *mvccpb.KeyValue, m schema.Move) error {
	value, err := schema.Encode(m)
	p.compares = []clientv3.Cmp{etcd.Unchanged(w.layout.Moves(), last)}
	p.once = []clientv3.Op{clientv3.OpPut(w.layout.Moves(), string(value))}
	return err
}
