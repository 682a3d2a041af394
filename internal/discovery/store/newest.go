package store

import (
	"context"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/pdmesh/pdmesh/internal/discovery/etcd"
)

// Newest is the highest revision at which something that proxies follow was written, and is
// there still: records, pending adds and intents. A proxy that follows has applied it.
func (s *Store) Newest(ctx context.Context) (int64, error) {
	var ops []clientv3.Op
	for _, prefix := range s.layout.ListedPrefixes() {
		ops = append(ops, clientv3.OpGet(prefix, clientv3.WithPrefix(), clientv3.WithKeysOnly(),
			clientv3.WithSort(clientv3.SortByModRevision, clientv3.SortDescend), clientv3.WithLimit(1)))
	}
	cctx, cancel := context.WithTimeout(ctx, etcd.CallTimeout)
	defer cancel()
	resp, err := s.cli.Txn(cctx).Then(ops...).Commit()
	if err != nil {
		return 0, etcd.Explain(ctx, s.cli, "ask for the newest change", err, true)
	}
	newest := int64(0)
	for _, one := range resp.Responses {
		for _, kv := range one.GetResponseRange().GetKvs() {
			newest = max(newest, kv.ModRevision)
		}
	}
	return newest, nil
}
