package store

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/pdmesh/pdmesh/internal/cli/sleep"
	"github.com/pdmesh/pdmesh/internal/discovery/etcd"
	"github.com/pdmesh/pdmesh/internal/discovery/schema"
	"github.com/pdmesh/pdmesh/internal/instance"
)

// ErrBusy means that others kept changing the same keys.
var ErrBusy = errors.New("too many others change the same instance")

// client is the connection that all parts share.
type client struct {
	cli    *clientv3.Client
	layout schema.Layout
}

// get reads keys. doing describes that in an error.
func (c *client) get(ctx context.Context, doing, key string, o ...clientv3.OpOption) ([]*mvccpb.KeyValue, error) {
	cctx, cancel := context.WithTimeout(ctx, etcd.CallTimeout)
	defer cancel()
	resp, err := c.cli.Get(cctx, key, o...)
	if err != nil {
		return nil, etcd.Explain(ctx, c.cli, doing, err, true)
	}
	return resp.Kvs, nil
}

// writer makes changes: each is one transaction that carries its audit entry, and is only
// applied if nothing that it decided on has changed meanwhile. Every write may be repeated:
// the second time it finds nothing to do. So a call that timed out, which may have been
// applied, is simply made again.
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

// by returns who makes a change.
func (w *writer) by(ctx context.Context) string {
	if actor, ok := ctx.Value(actorKey{}).(string); ok {
		return actor
	}
	return w.actor
}

// ensureSchema writes the schema key if there is none, and checks it otherwise.
func (w *writer) ensureSchema(ctx context.Context) error {
	cctx, cancel := context.WithTimeout(ctx, etcd.CallTimeout)
	defer cancel()
	resp, err := w.cli.Txn(cctx).
		If(clientv3.Compare(clientv3.CreateRevision(w.layout.Schema()), "=", 0)).
		Then(clientv3.OpPut(w.layout.Schema(), schema.VersionValue)).
		Else(clientv3.OpGet(w.layout.Schema())).
		Commit()
	if err != nil {
		return etcd.Explain(ctx, w.cli, "check the schema key", err, true)
	}
	if resp.Succeeded {
		return nil
	}
	return etcd.CheckSchema(w.layout, resp.Responses[0].GetResponseRange().Kvs)
}

// plan is what a decision wants written: nothing if ops is empty.
type plan struct {
	ops           []clientv3.Op
	what          string   // for the audit entry
	weight        *int     // the same
	before, after *string  // the same, of a document
	changes       []Change // the same, of several keys
	lease         time.Duration
	put           func(clientv3.LeaseID) clientv3.Op // one more op, under a lease of that length

	puts []func(clientv3.LeaseID) clientv3.Op // those of several plans together

	// once and compares are the operations and conditions that all plans of a change share.
	once     []clientv3.Op
	compares []clientv3.Cmp
}

// add takes the plan for another membership in.
func (p *plan) add(more plan) {
	if p.what == "" {
		p.what, p.weight = more.what, more.weight
	}
	p.ops, p.lease = append(p.ops, more.ops...), max(p.lease, more.lease)
	if more.put != nil {
		p.puts = append(p.puts, more.put)
	}
	if p.once == nil {
		p.once, p.compares = more.once, more.compares
	}
}

const (
	storeTimeout = 10 * time.Second
	storeTries   = 16
)

// change is changeEach of one membership.
func (w *writer) change(ctx context.Context, k instance.Key, why string, decide func(*etcd.Found) (plan, error)) error {
	return w.changeEach(ctx, k, why, func(_ instance.Key, f *etcd.Found) (plan, error) { return decide(f) })
}

// changeEach is changeAt without the revision.
func (w *writer) changeEach(ctx context.Context, k instance.Key, why string, decide func(instance.Key, *etcd.Found) (plan, error)) error {
	_, err := w.changeAt(ctx, k, why, decide)
	return err
}

// changeAt reads the keys of the memberships that k stands for, calls decide for a plan of
// each, and applies the plans in one transaction. If a key was changed since it was read,
// changeAt starts over. It returns the revision of the transaction, 0 if there was nothing to
// write.
func (w *writer) changeAt(ctx context.Context, k instance.Key, why string, decide func(instance.Key, *etcd.Found) (plan, error)) (int64, error) {
	ctx, cancel := context.WithTimeout(ctx, storeTimeout)
	defer cancel()
	var leases []clientv3.LeaseID // granted but not used
	defer func() { w.revokeUnused(ctx, leases) }()
	for try := range storeTries {
		if try > 0 && !sleep.For(ctx, time.Duration(rand.Int64N(int64(20*time.Millisecond)*int64(try)))) {
			break
		}
		all, err := etcd.LookAll(ctx, w.cli, w.layout, k.Each(), true)
		if err != nil {
			return 0, err
		}
		if err := etcd.CheckFound(w.layout, all[0]); err != nil {
			return 0, err
		}
		var p plan
		for i, one := range k.Each() {
			own, err := decide(one, all[i])
			if err != nil {
				return 0, err
			}
			p.add(own)
		}
		if len(p.ops)+len(p.puts) == 0 {
			return 0, nil
		}
		revision, unused, err := w.apply(ctx, k, why, all, p)
		leases = append(leases, unused...)
		if err != nil {
			return 0, err
		}
		if revision > 0 {
			return revision, nil
		}
	}
	return 0, fmt.Errorf("change %s: %w; try again", k, ErrBusy)
}

// apply makes the transaction of a change. It returns its revision, 0 if it was not applied,
// and the leases that it granted but did not use.
func (w *writer) apply(ctx context.Context, k instance.Key, why string, all []*etcd.Found, p plan) (revision int64, unused []clientv3.LeaseID, err error) {
	ops := p.ops
	var limited []clientv3.Op
	var granted []clientv3.LeaseID
	if len(p.puts) > 0 {
		id := clientv3.NoLease
		if p.lease > 0 {
			id, err = w.grant(ctx, p.lease)
			if err != nil {
				return 0, nil, err
			}
			granted = append(granted, id)
		}
		for _, put := range p.puts {
			if p.lease > 0 {
				limited = append(limited, put(id))
			} else {
				ops = append(ops, put(id))
			}
		}
	}
	before := map[string]*mvccpb.KeyValue{}
	for _, f := range all {
		for _, kv := range append([]*mvccpb.KeyValue{f.Record, f.Override}, f.Aliases...) {
			if kv != nil {
				before[string(kv.Key)] = kv
			}
		}
	}
	p.changes = w.changesOf(ops, limited, before)
	ops = append(ops, limited...)
	audit, err := w.audit(ctx, k, p, why)
	if err != nil {
		return 0, granted, err
	}
	ops = append(append(ops, p.once...), audit...)
	if all[0].Schema == nil {
		ops = append(ops, clientv3.OpPut(w.layout.Schema(), schema.VersionValue))
	}
	compares := append(p.compares, etcd.Unchanged(w.layout.Schema(), all[0].Schema))
	for i, k := range k.Each() {
		f := all[i]
		compares = append(compares, etcd.Unchanged(w.layout.Instance(k), f.Record),
			etcd.Unchanged(w.layout.Pending(k), f.Pending), etcd.Unchanged(w.layout.Override(k), f.Override))
		for _, kv := range f.Aliases {
			compares = append(compares, etcd.Unchanged(string(kv.Key), kv))
		}
	}
	cctx, cancel := context.WithTimeout(ctx, etcd.CallTimeout)
	defer cancel()
	resp, err := w.cli.Txn(cctx).If(compares...).Then(ops...).Commit()
	if err != nil {
		// It may have been applied: its leases must not be taken back.
		return 0, nil, fmt.Errorf("%w (it may have been applied all the same; repeating it does no harm)",
			etcd.Explain(ctx, w.cli, p.what+" "+k.String(), err, true))
	}
	if !resp.Succeeded {
		return 0, granted, nil
	}
	return resp.Header.Revision, nil, nil
}

func (w *writer) grant(ctx context.Context, ttl time.Duration) (clientv3.LeaseID, error) {
	cctx, cancel := context.WithTimeout(ctx, etcd.CallTimeout)
	defer cancel()
	resp, err := w.cli.Grant(cctx, etcd.Seconds(ttl))
	if err != nil {
		return 0, etcd.Explain(ctx, w.cli, "grant a lease", err, true)
	}
	return resp.ID, nil
}

// revokeUnused revokes leases that were granted but not used. Its errors are ignored: the
// leases have no key and expire by themselves.
func (w *writer) revokeUnused(ctx context.Context, leases []clientv3.LeaseID) {
	ctx = context.WithoutCancel(ctx)
	for _, id := range leases {
		cctx, cancel := context.WithTimeout(ctx, etcd.CallTimeout)
		_, err := w.cli.Revoke(cctx, id)
		cancel()
		if err != nil {
			return
		}
	}
}
