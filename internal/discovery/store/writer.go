package store

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/pdmesh/pdmesh/internal/cli/sleep"
	"github.com/pdmesh/pdmesh/internal/discovery/etcd"
	"github.com/pdmesh/pdmesh/internal/discovery/schema"
	"github.com/pdmesh/pdmesh/internal/discovery/watch"
	"github.com/pdmesh/pdmesh/internal/instance"
)

// ErrBusy means that other programs kept changing the same keys.
var ErrBusy = errors.New("too many concurrent changes of the instance")

// client is the connection that all parts share.
type client struct {
	cli    *clientv3.Client
	layout schema.Layout
}

// get reads keys. doing names the operation in errors.
func (c *client) get(ctx context.Context, doing, key string, o ...clientv3.OpOption) ([]*mvccpb.KeyValue, error) {
	cctx, cancel := context.WithTimeout(ctx, etcd.CallTimeout)
	defer cancel()
	resp, err := c.cli.Get(cctx, key, o...)
	if err != nil {
		return nil, etcd.Explain(ctx, c.cli, doing, err, true)
	}
	return resp.Kvs, nil
}

// timeToLive returns the time that is left of a lease, -1 s if it has ended, and the time that was
// granted. doing names the operation in errors.
func (c *client) timeToLive(ctx context.Context, doing string, id int64) (left, granted time.Duration, err error) {
	cctx, cancel := context.WithTimeout(ctx, etcd.CallTimeout)
	defer cancel()
	resp, err := c.cli.TimeToLive(cctx, clientv3.LeaseID(id))
	if err != nil {
		return 0, 0, etcd.Explain(ctx, c.cli, doing, err, true)
	}
	return time.Duration(resp.TTL) * time.Second, time.Duration(resp.GrantedTTL) * time.Second, nil
}

// txn makes a transaction. doing names the operation in errors.
func (c *client) txn(ctx context.Context, doing string, compares []clientv3.Cmp, then []clientv3.Op, otherwise ...clientv3.Op) (*clientv3.TxnResponse, error) {
	cctx, cancel := context.WithTimeout(ctx, etcd.CallTimeout)
	defer cancel()
	resp, err := c.cli.Txn(cctx).If(compares...).Then(then...).Else(otherwise...).Commit()
	if err != nil {
		return nil, etcd.Explain(ctx, c.cli, doing, err, true)
	}
	return resp, nil
}

// spellings returns the keys of the same membership that are not in canonical form, and keys with a
// bad address that are displayed as k.Address. It reads keys only.
func (c *client) spellings(ctx context.Context, k instance.Key) ([]*mvccpb.KeyValue, error) {
	role := instance.Key{Role: k.Role}
	resp, err := c.txn(ctx, "look for other spellings of "+k.String(), nil, []clientv3.Op{
		clientv3.OpGet(c.layout.Instance(role), clientv3.WithPrefix(), clientv3.WithKeysOnly()),
		clientv3.OpGet(c.layout.Pending(role), clientv3.WithPrefix(), clientv3.WithKeysOnly()),
	})
	if err != nil {
		return nil, err
	}
	const most = 50 // a transaction holds 128 operations
	var same []*mvccpb.KeyValue
	for _, r := range resp.Responses {
		for _, kv := range r.GetResponseRange().Kvs {
			n := c.layout.Parse(string(kv.Key))
			if n.Address == k.Address || len(same) == most {
				continue
			}
			if is, _ := watch.KeyOf(schema.Name{Kind: schema.KindOther, Key: n.Key}, kv); is == k {
				same = append(same, kv)
			}
		}
	}
	return same, nil
}

// writer makes changes. Each is one transaction with its audit entry, which applies only if the
// keys that it depends on have not changed. Every change is idempotent: a call that timed out, and
// may have been applied, can be repeated.
type writer struct {
	client
	actor    string
	maxAudit int64 // entries that are kept
}

// actorKey is the key of the actor in a context.
type actorKey struct{}

// WithActor returns a context whose changes are attributed to another actor than that of New, for
// example the name of an admin key.
func WithActor(ctx context.Context, actor string) context.Context {
	return context.WithValue(ctx, actorKey{}, actor)
}

// by returns the actor of a change.
func (w *writer) by(ctx context.Context) string {
	if actor, ok := ctx.Value(actorKey{}).(string); ok {
		return actor
	}
	return w.actor
}

// endState returns the operation that ends the state of an override. A weight stays, with this
// reason.
func (w *writer) endState(ctx context.Context, k instance.Key, o schema.Override, reason string) (clientv3.Op, error) {
	if o.Weight == nil {
		return clientv3.OpDelete(w.layout.Override(k)), nil
	}
	value, err := schema.Encode(schema.Override{V: o.V, Weight: o.Weight, Reason: reason, By: w.by(ctx)})
	return clientv3.OpPut(w.layout.Override(k), string(value), clientv3.WithIgnoreLease()), err
}

// ensureSchema writes the schema key if there is none, and checks it otherwise.
func (w *writer) ensureSchema(ctx context.Context) error {
	key := w.layout.Schema()
	resp, err := w.txn(ctx, "check the schema key", []clientv3.Cmp{etcd.Unchanged(key, nil)},
		[]clientv3.Op{clientv3.OpPut(key, schema.VersionValue)}, clientv3.OpGet(key))
	if err != nil || resp.Succeeded {
		return err
	}
	return etcd.CheckSchema(w.layout, etcd.Single(resp.Responses[0].GetResponseRange().Kvs))
}

// plan has the writes of one decision: none if ops and timed are empty.
type plan struct {
	ops     []clientv3.Op
	what    string   // for the audit entry
	weight  *int     // the same
	changes []Change // the same
	// timed are keys to write under one lease of this length, if it is not 0.
	timed []keyValue
	lease time.Duration
	// once and compares are the operations and conditions that all plans of a change share.
	once     []clientv3.Op
	compares []clientv3.Cmp
	// found are the keys as they were read.
	found map[string]*mvccpb.KeyValue
}

type keyValue struct {
	key   string
	value []byte
}

// add adds the plan for another membership.
func (p *plan) add(more plan) {
	if p.what == "" {
		p.what, p.weight = more.what, more.weight
	}
	p.ops, p.timed, p.lease = append(p.ops, more.ops...), append(p.timed, more.timed...), max(p.lease, more.lease)
	if p.once == nil {
		p.once, p.compares = more.once, more.compares
	}
}

const (
	storeTimeout = 10 * time.Second
	storeTries   = 16
)

// change is changeEach for one membership, without the revision.
func (w *writer) change(ctx context.Context, k instance.Key, why string, decide func(*etcd.Found) (plan, error)) error {
	_, err := w.changeEach(ctx, k, why, func(_ instance.Key, f *etcd.Found) (plan, error) { return decide(f) })
	return err
}

// changeEach reads the keys of the memberships of k, calls decide for a plan of each, and applies
// the plans in one transaction. It returns the revision like retry.
func (w *writer) changeEach(ctx context.Context, k instance.Key, why string, decide func(instance.Key, *etcd.Found) (plan, error)) (int64, error) {
	return w.retry(ctx, k, why, func(ctx context.Context) (plan, error) {
		all, err := etcd.FindAll(ctx, w.cli, w.layout, k.Each(), true)
		if err != nil {
			return plan{}, err
		}
		if err := etcd.CheckSchema(w.layout, all[0].Schema); err != nil {
			return plan{}, err
		}
		var p plan
		for i, one := range k.Each() {
			own, err := decide(one, all[i])
			if err != nil {
				return plan{}, err
			}
			p.add(own)
		}
		p.readFrom(w.layout, k.Each(), all)
		return p, nil
	})
}

// readFrom makes a plan depend on the keys that it was decided on, so that it is not applied if one
// of them has changed since.
func (p *plan) readFrom(l schema.Layout, keys []instance.Key, all []*etcd.Found) {
	if all[0].Schema == nil {
		p.once = append(p.once, clientv3.OpPut(l.Schema(), schema.VersionValue))
	}
	p.compares = append(p.compares, etcd.Unchanged(l.Schema(), all[0].Schema))
	p.found = map[string]*mvccpb.KeyValue{}
	for i, k := range keys {
		f := all[i]
		p.compares = append(p.compares, etcd.Unchanged(l.Instance(k), f.Record),
			etcd.Unchanged(l.Pending(k), f.Pending), etcd.Unchanged(l.Override(k), f.Override))
		for _, kv := range f.Aliases {
			p.compares = append(p.compares, etcd.Unchanged(string(kv.Key), kv))
		}
		for _, kv := range append([]*mvccpb.KeyValue{f.Record, f.Override}, f.Aliases...) {
			if kv != nil {
				p.found[string(kv.Key)] = kv
			}
		}
	}
}

// retry calls decide, which reads keys, for a plan, and applies it. If a key was changed since it
// was read, it starts over. It returns the revision of the transaction, 0 if there was nothing to
// write.
func (w *writer) retry(ctx context.Context, k instance.Key, why string, decide func(context.Context) (plan, error)) (int64, error) {
	ctx, cancel := context.WithTimeout(ctx, storeTimeout)
	defer cancel()
	for try := range storeTries {
		if try > 0 && !sleep.For(ctx, time.Duration(rand.Int64N(int64(20*time.Millisecond)*int64(try)))) {
			break
		}
		p, err := decide(ctx)
		if err != nil || len(p.ops)+len(p.timed) == 0 {
			return 0, err
		}
		revision, err := w.apply(ctx, k, why, p)
		if err != nil || revision > 0 {
			return revision, err
		}
	}
	return 0, fmt.Errorf("change %s: %w; try again", k, ErrBusy)
}

// apply makes the transaction of a change. It returns its revision, 0 if it was not applied.
func (w *writer) apply(ctx context.Context, k instance.Key, why string, p plan) (revision int64, err error) {
	id := clientv3.NoLease
	if len(p.timed) > 0 && p.lease > 0 {
		if id, err = etcd.Grant(ctx, w.cli, p.lease); err != nil {
			return 0, err
		}
	}
	var timed []clientv3.Op
	for _, t := range p.timed {
		timed = append(timed, clientv3.OpPut(t.key, string(t.value), clientv3.WithLease(id)))
	}
	p.changes = append(w.changesOf(p.ops, false, p.found), w.changesOf(timed, id != clientv3.NoLease, p.found)...)
	audit, err := w.audit(ctx, k, p, why)
	if err != nil {
		w.revokeUnused(ctx, id)
		return 0, err
	}
	resp, err := w.commit(ctx, p.what+" "+k.String(), p.compares, slices.Concat(p.ops, timed, p.once, audit))
	switch {
	case err != nil:
		return 0, err // the lease may be in use
	case !resp.Succeeded:
		w.revokeUnused(ctx, id)
		return 0, nil
	}
	return resp.Header.Revision, nil
}

// commit is txn for changes. After an error other than ErrPermissionDenied, the change may have
// been applied.
func (w *writer) commit(ctx context.Context, doing string, compares []clientv3.Cmp, then []clientv3.Op, otherwise ...clientv3.Op) (*clientv3.TxnResponse, error) {
	resp, err := w.txn(ctx, doing, compares, then, otherwise...)
	switch {
	case errors.Is(err, rpctypes.ErrPermissionDenied):
		return nil, err
	case err != nil:
		return nil, fmt.Errorf("%w (it may have been applied all the same; repeating it does no harm)", err)
	}
	return resp, nil
}

// revokeUnused revokes a lease that was granted but not used. An error is ignored: the lease has no
// key and expires by itself.
func (w *writer) revokeUnused(ctx context.Context, id clientv3.LeaseID) {
	if id != clientv3.NoLease {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), etcd.CallTimeout)
		defer cancel()
		_, _ = w.cli.Revoke(ctx, id)
	}
}
