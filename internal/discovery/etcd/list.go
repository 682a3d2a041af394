package etcd

import (
	"context"
	"time"

	"github.com/pdmesh/pdmesh/internal/discovery/schema"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
)

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
