package etcd

import (
	"context"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/pdmesh/pdmesh/internal/discovery/schema"
	"github.com/pdmesh/pdmesh/internal/instance"
)

// CheckSchema returns nil if this code may write below the layout's root. kv is the schema key, nil
// if there is none. See schema.CheckVersion.
func CheckSchema(l schema.Layout, kv *mvccpb.KeyValue) error {
	if kv == nil {
		return nil
	}
	return schema.CheckVersion(l, kv.Value)
}

// Single returns the first key of a response, nil if there is none.
func Single(kvs []*mvccpb.KeyValue) *mvccpb.KeyValue {
	if len(kvs) == 0 {
		return nil
	}
	return kvs[0]
}

// Found is the content of etcd for one membership.
type Found struct {
	Record, Pending, Override, Schema *mvccpb.KeyValue // nil: absent
	Aliases                           []*mvccpb.KeyValue
	Revision                          int64 // of the read
}

// Removed reports whether an operator has removed the instance.
func (f *Found) Removed() bool {
	o, err := f.Wanted()
	return err == nil && o.State == instance.Removed
}

// FindAll reads several memberships at the same revision.
func FindAll(ctx context.Context, cli *clientv3.Client, l schema.Layout, keys []instance.Key, why bool) ([]*Found, error) {
	cctx, cancel := context.WithTimeout(ctx, CallTimeout)
	defer cancel()
	const each = 3
	ops := make([]clientv3.Op, 0, each*len(keys)+1)
	for _, k := range keys {
		ops = append(ops, clientv3.OpGet(l.Instance(k)), clientv3.OpGet(l.Pending(k)), clientv3.OpGet(l.Override(k)))
	}
	resp, err := cli.Txn(cctx).Then(append(ops, clientv3.OpGet(l.Schema()))...).Commit()
	if err != nil {
		return nil, Explain(ctx, cli, "read "+keys[0].String(), err, why)
	}
	at := func(i int) *mvccpb.KeyValue { return Single(resp.Responses[i].GetResponseRange().Kvs) }
	all := make([]*Found, len(keys))
	for i := range keys {
		all[i] = &Found{Record: at(each * i), Pending: at(each*i + 1), Override: at(each*i + 2), Schema: at(each * len(keys)), Revision: resp.Header.Revision}
	}
	return all, nil
}

// Unchanged returns the condition that a key is as it was read; kv is nil for an absent key.
func Unchanged(key string, kv *mvccpb.KeyValue) clientv3.Cmp {
	if kv == nil {
		return clientv3.Compare(clientv3.CreateRevision(key), "=", 0)
	}
	return clientv3.Compare(clientv3.ModRevision(key), "=", kv.ModRevision)
}

// Wanted decodes the override. It returns one without an intent if there is none.
func (f *Found) Wanted() (schema.Override, error) {
	if f.Override == nil {
		return schema.Override{V: 1}, nil
	}
	return schema.DecodeOverride(f.Override.Value)
}

// Temporary reports whether the override ends with a lease.
func (f *Found) Temporary() bool { return f.Override != nil && f.Override.Lease != 0 }

// Listing has all keys of the membership at one revision.
type Listing struct {
	KVs      []*mvccpb.KeyValue
	Revision int64
	Cluster  uint64
	Member   uint64           // that answered
	Schema   int64            // create_revision of the schema key, 0 without one
	Order    *mvccpb.KeyValue // an operator's order to the proxies, nil without one

	Before    int64 // last revision known when the list was requested
	Requested int64 // number of lists requested after suspensions until then
}

// List reads the membership within limit, in one linearizable transaction of ranges. The ranges
// omit load/, proxies/ and audit/, which change all the time and do not affect the membership. withDiagnosis
// is as in Explain; opts apply to the ranges, for example to read only keys.
func List(ctx context.Context, limit time.Duration, cli *clientv3.Client, l schema.Layout, withDiagnosis bool, opts ...clientv3.OpOption) (Listing, error) {
	cctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	prefixes := l.ListedPrefixes()
	ops := make([]clientv3.Op, 0, len(prefixes)+2)
	for _, p := range prefixes {
		ops = append(ops, clientv3.OpGet(p, append(opts, clientv3.WithPrefix())...))
	}
	ops = append(ops, clientv3.OpGet(l.Schema()), clientv3.OpGet(l.Kept()))
	resp, err := cli.Txn(cctx).Then(ops...).Commit()
	if err != nil {
		return Listing{}, Explain(ctx, cli, "list the membership", err, withDiagnosis)
	}
	out := Listing{Revision: resp.Header.Revision, Cluster: resp.Header.ClusterId, Member: resp.Header.MemberId}
	n := len(prefixes)
	for _, r := range resp.Responses[:n] {
		out.KVs = append(out.KVs, r.GetResponseRange().Kvs...)
	}
	out.Schema = Single(resp.Responses[n].GetResponseRange().Kvs).GetCreateRevision()
	out.Order = Single(resp.Responses[n+1].GetResponseRange().Kvs)
	return out, nil
}
