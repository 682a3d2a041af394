package discovery

import (
	"context"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// listing is everything that says something about membership, at one revision.
type listing struct {
	kvs      []*mvccpb.KeyValue
	revision int64
	cluster  uint64
}

// list reads the membership. It is one transaction of ranges: linearizable,
// atomic, and without the segments that change all the time and mean nothing
// here (load/, proxies/, audit/). Its deadline is its own. look is as in explain.
func list(ctx context.Context, cli *clientv3.Client, l Layout, look bool) (listing, error) {
	cctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	prefixes := l.listedPrefixes()
	ops := make([]clientv3.Op, 0, len(prefixes)+1)
	for _, p := range prefixes {
		ops = append(ops, clientv3.OpGet(p, clientv3.WithPrefix()))
	}
	ops = append(ops, clientv3.OpGet(l.Schema()))
	resp, err := cli.Txn(cctx).Then(ops...).Commit()
	if err != nil {
		return listing{}, explain(ctx, cli, "list the membership", err, look)
	}
	out := listing{revision: resp.Header.Revision, cluster: resp.Header.ClusterId}
	for _, r := range resp.Responses {
		out.kvs = append(out.kvs, r.GetResponseRange().Kvs...)
	}
	return out, nil
}
