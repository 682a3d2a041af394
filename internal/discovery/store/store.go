// Package store makes the writes of operators, each in one transaction with its audit
// entry, and the reads that serve them.
package store

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/pdmesh/pdmesh/internal/discovery/etcd"
	"github.com/pdmesh/pdmesh/internal/discovery/schema"
	"github.com/pdmesh/pdmesh/internal/discovery/watch"
	"github.com/pdmesh/pdmesh/internal/instance"
)

// ErrBusy means that others kept changing the same keys.
var ErrBusy = errors.New("too many others change the same instance")

// AddOutcome tells what an add did.
type AddOutcome string

// The outcomes of adds.
const (
	Added        AddOutcome = "added"         // the record was written
	AlreadyThere AddOutcome = "already-there" // a record exists, static or leased, and was left alone
	Waiting      AddOutcome = "waiting"       // the add waits for its instance
)

// Store reads the membership once and writes what operators want: static
// records, pending adds and removals. Each write is one transaction that
// carries its audit entry and is only applied if nothing it decided on has
// changed meanwhile. Every write may be repeated: the second time it finds
// nothing to do. So a timed-out call, which may have been applied, is simply
// made again. It is safe for concurrent use.
type Store struct {
	cli      *clientv3.Client
	layout   schema.Layout
	actor    string
	maxAudit int64
}

// New makes a Store. actor says in audit entries who did it, for example
// "pdctl root@host" or "proxy <id>".
func New(cli *clientv3.Client, l schema.Layout, actor string) *Store {
	return &Store{cli: cli, layout: l, actor: actor, maxAudit: maxAudit}
}

// Snapshot lists the membership once, linearizably. Nothing is verified by it:
// bare records are shown as unverified.
func (s *Store) Snapshot(ctx context.Context) (*instance.Snapshot, error) {
	snap, _, err := s.List(ctx)
	return snap, err
}

// List is Snapshot, and with it what the snapshot does not show: removals of
// which nothing is registered, in the order of their keys.
func (s *Store) List(ctx context.Context) (*instance.Snapshot, []Removal, error) {
	got, err := etcd.List(ctx, etcd.CallTimeout, s.cli, s.layout, true)
	if err != nil {
		return nil, nil, err
	}
	snap := watch.Build(s.layout, got.KVs, got.Revision, nil, watch.VerifiedFacts{})
	var removals []Removal
	for _, kv := range got.KVs {
		n := s.layout.Parse(string(kv.Key))
		if n.Kind != schema.KindOverride {
			continue
		}
		k := instance.Key{Role: n.Role, Address: n.Address}
		if _, shown := snap.Lookup(k); shown {
			continue
		}
		if o, err := schema.DecodeOverride(kv.Value); err == nil && o.State == instance.Removed {
			removals = append(removals, Removal{Key: k, By: o.By, Reason: o.Reason, Revision: kv.ModRevision})
		}
	}
	return snap, removals, nil
}

// Removal is an operator's word that an instance stays out. By and Reason are as
// they stand in etcd.
type Removal struct {
	Key        instance.Key
	By, Reason string
	Revision   int64 // mod_revision of the override
}

// EnsureSchema writes the schema key if there is none, and checks it if there is.
func (s *Store) EnsureSchema(ctx context.Context) error {
	cctx, cancel := context.WithTimeout(ctx, etcd.CallTimeout)
	defer cancel()
	resp, err := s.cli.Txn(cctx).
		If(clientv3.Compare(clientv3.CreateRevision(s.layout.Schema()), "=", 0)).
		Then(clientv3.OpPut(s.layout.Schema(), schema.VersionValue)).
		Else(clientv3.OpGet(s.layout.Schema())).
		Commit()
	if err != nil {
		return etcd.Explain(ctx, s.cli, "check the schema key", err, true)
	}
	if resp.Succeeded {
		return nil
	}
	return etcd.CheckSchema(s.layout, resp.Responses[0].GetResponseRange().Kvs)
}

// plan is what a decision wants written: nothing if ops is empty.
type plan struct {
	ops    []clientv3.Op
	what   string // for the audit entry
	weight *int   // the same
	lease  time.Duration
	put    func(clientv3.LeaseID) clientv3.Op // one more op, under a lease of that length

	puts []func(clientv3.LeaseID) clientv3.Op // those of several plans together
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
}

const (
	storeTimeout = 10 * time.Second
	storeTries   = 16
)

// change is changeEach of one membership.
func (s *Store) change(ctx context.Context, k instance.Key, why string, decide func(*etcd.Found) (plan, error)) error {
	return s.changeEach(ctx, k, why, func(_ instance.Key, f *etcd.Found) (plan, error) { return decide(f) })
}

// changeEach is changeAt where nobody asks for the revision.
func (s *Store) changeEach(ctx context.Context, k instance.Key, why string, decide func(instance.Key, *etcd.Found) (plan, error)) error {
	_, err := s.changeAt(ctx, k, why, decide)
	return err
}

// changeAt reads what is known of the memberships that k means, lets decide make a plan
// of each and applies the plans, in one transaction, if nothing of what was read has
// changed; else it starts over. It gives the revision of the transaction, 0 if there was
// nothing to write.
func (s *Store) changeAt(ctx context.Context, k instance.Key, why string, decide func(instance.Key, *etcd.Found) (plan, error)) (int64, error) {
	ctx, cancel := context.WithTimeout(ctx, storeTimeout)
	defer cancel()
	var leases []clientv3.LeaseID // granted but not used
	defer func() { s.giveBack(ctx, leases) }()
	for try := range storeTries {
		if try > 0 && !etcd.Pause(ctx, time.Duration(rand.Int64N(int64(20*time.Millisecond)*int64(try)))) {
			break
		}
		all, err := etcd.LookAll(ctx, s.cli, s.layout, k.Each(), true)
		if err != nil {
			return 0, err
		}
		if err := etcd.CheckFound(s.layout, all[0]); err != nil {
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
		revision, unused, err := s.apply(ctx, k, why, all, p)
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

// apply makes the one transaction of a change. It gives its revision, 0 if it was not
// applied, and the leases that it granted in vain.
func (s *Store) apply(ctx context.Context, k instance.Key, why string, all []*etcd.Found, p plan) (revision int64, unused []clientv3.LeaseID, err error) {
	ops := p.ops
	var granted []clientv3.LeaseID
	if len(p.puts) > 0 {
		id := clientv3.NoLease
		if p.lease > 0 {
			id, err = s.grant(ctx, p.lease)
			if err != nil {
				return 0, nil, err
			}
			granted = append(granted, id)
		}
		for _, put := range p.puts {
			ops = append(ops, put(id))
		}
	}
	audit, err := s.audit(ctx, k, p, why)
	if err != nil {
		return 0, granted, err
	}
	ops = append(ops, audit...)
	if all[0].Schema == nil {
		ops = append(ops, clientv3.OpPut(s.layout.Schema(), schema.VersionValue))
	}
	compares := []clientv3.Cmp{etcd.Unchanged(s.layout.Schema(), all[0].Schema)}
	for i, k := range k.Each() {
		f := all[i]
		compares = append(compares, etcd.Unchanged(s.layout.Instance(k), f.Record),
			etcd.Unchanged(s.layout.Pending(k), f.Pending), etcd.Unchanged(s.layout.Override(k), f.Override))
		for _, kv := range f.Aliases {
			compares = append(compares, etcd.Unchanged(string(kv.Key), kv))
		}
	}
	cctx, cancel := context.WithTimeout(ctx, etcd.CallTimeout)
	defer cancel()
	resp, err := s.cli.Txn(cctx).If(compares...).Then(ops...).Commit()
	if err != nil {
		// It may have been applied: its leases must not be taken back.
		return 0, nil, fmt.Errorf("%w (it may have been applied all the same; repeating it does no harm)",
			etcd.Explain(ctx, s.cli, p.what+" "+k.String(), err, true))
	}
	if !resp.Succeeded {
		return 0, granted, nil
	}
	return resp.Header.Revision, nil, nil
}

func (s *Store) grant(ctx context.Context, ttl time.Duration) (clientv3.LeaseID, error) {
	cctx, cancel := context.WithTimeout(ctx, etcd.CallTimeout)
	defer cancel()
	resp, err := s.cli.Grant(cctx, etcd.Seconds(ttl))
	if err != nil {
		return 0, etcd.Explain(ctx, s.cli, "grant a lease", err, true)
	}
	return resp.ID, nil
}

// giveBack revokes leases that were granted in vain. It is a courtesy: they
// hold no key and end by themselves.
func (s *Store) giveBack(ctx context.Context, leases []clientv3.LeaseID) {
	ctx = context.WithoutCancel(ctx)
	for _, id := range leases {
		cctx, cancel := context.WithTimeout(ctx, etcd.CallTimeout)
		_, err := s.cli.Revoke(cctx, id)
		cancel()
		if err != nil {
			return
		}
	}
}

// RawKey is one key as etcd has it.
type RawKey struct {
	Key            string
	Value          []byte
	CreateRevision int64
	ModRevision    int64
	Version        int64
	Lease          int64
	TTL            time.Duration // left on the lease; 0 without a lease, -1s if the lease is gone
	GrantedTTL     time.Duration
}

// Get reads everything etcd holds about one membership: its record, its
// pending add and its override, those that exist, in this order.
func (s *Store) Get(ctx context.Context, k instance.Key) ([]RawKey, error) {
	f, err := etcd.Look(ctx, s.cli, s.layout, k, true)
	if err != nil {
		return nil, err
	}
	var raw []RawKey
	for _, kv := range []*mvccpb.KeyValue{f.Record, f.Pending, f.Override} {
		if kv == nil {
			continue
		}
		r := RawKey{
			Key: string(kv.Key), Value: kv.Value, Lease: kv.Lease,
			CreateRevision: kv.CreateRevision, ModRevision: kv.ModRevision, Version: kv.Version,
		}
		if kv.Lease != 0 {
			cctx, cancel := context.WithTimeout(ctx, etcd.CallTimeout)
			ttl, err := s.cli.TimeToLive(cctx, clientv3.LeaseID(kv.Lease))
			cancel()
			if err != nil {
				return nil, etcd.Explain(ctx, s.cli, "ask for the lease of "+strings.TrimPrefix(r.Key, s.layout.Root()), err, true)
			}
			r.TTL = time.Duration(ttl.TTL) * time.Second
			r.GrantedTTL = time.Duration(ttl.GrantedTTL) * time.Second
		}
		raw = append(raw, r)
	}
	return raw, nil
}
