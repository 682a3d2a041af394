package store

import (
	"context"

	"github.com/pdmesh/pdmesh/internal/discovery/etcd"
	"github.com/pdmesh/pdmesh/internal/discovery/lease"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// Proxies lists the proxies that run, in the order of their ids. One whose
// value cannot be read is listed with its id alone.
func (s *Store) Proxies(ctx context.Context) ([]lease.ProxyPresence, error) {
	cctx, cancel := context.WithTimeout(ctx, etcd.CallTimeout)
	defer cancel()
	prefix := s.layout.Proxy("")
	resp, err := s.cli.Get(cctx, prefix, clientv3.WithPrefix())
	if err != nil {
		return nil, etcd.Explain(ctx, s.cli, "list the proxies", err, true)
	}
	return lease.ReadProxies(s.layout, resp.Kvs), nil
}

// Loads lists the digests of the proxies, in the order of their ids.
func (s *Store) Loads(ctx context.Context) ([]*lease.ProxyLoad, error) {
	cctx, cancel := context.WithTimeout(ctx, etcd.CallTimeout)
	defer cancel()
	prefix := s.layout.Load("")
	resp, err := s.cli.Get(cctx, prefix, clientv3.WithPrefix())
	if err != nil {
		return nil, etcd.Explain(ctx, s.cli, "list the load digests", err, true)
	}
	return lease.ReadLoads(s.layout, resp.Kvs), nil
}
