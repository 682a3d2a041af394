package discovery

import (
	"context"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// listing is everything that says something about membership, at one revision.
type listing struct {
	kvs      []*mvccpb.KeyValue
	revision int64
	cluster  uint64
	member   uint64           // that answered
	schema   int64            // create_revision of the schema key, 0 without one
	order    *mvccpb.KeyValue // an operator's order to the proxies, nil without one

	before int64 // the last revision that was known when the list was asked for
	asked  int64 // how often a re-list had been demanded then
}

// list reads the membership. It is one transaction of ranges: linearizable,
// atomic, and without the segments that change all the time and mean nothing
// here (load/, proxies/, audit/). It takes limit at most. look is as in explain;
// the options are for the ranges, for those who want the keys only.
func list(ctx context.Context, limit time.Duration, cli *clientv3.Client, l Layout, look bool, opts ...clientv3.OpOption) (listing, error) {
	cctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	prefixes := l.listedPrefixes()
	ops := make([]clientv3.Op, 0, len(prefixes)+2)
	for _, p := range prefixes {
		ops = append(ops, clientv3.OpGet(p, append(opts, clientv3.WithPrefix())...))
	}
	ops = append(ops, clientv3.OpGet(l.Schema()), clientv3.OpGet(l.Kept()))
	resp, err := cli.Txn(cctx).Then(ops...).Commit()
	if err != nil {
		return listing{}, explain(ctx, cli, "list the membership", err, look)
	}
	out := listing{revision: resp.Header.Revision, cluster: resp.Header.ClusterId, member: resp.Header.MemberId}
	for i, r := range resp.Responses {
		kvs := r.GetResponseRange().Kvs
		switch {
		case i < len(prefixes):
			out.kvs = append(out.kvs, kvs...)
		case len(kvs) == 0:
		case i == len(prefixes):
			out.schema = kvs[0].CreateRevision
		default:
			out.order = kvs[0]
		}
	}
	return out, nil
}
