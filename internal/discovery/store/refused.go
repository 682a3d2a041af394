package store

import (
	"context"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/pdmesh/pdmesh/internal/discovery/etcd"
	"github.com/pdmesh/pdmesh/internal/discovery/lease"
)

// RefusedAgents lists the agents that say that they are refused.
func (s *Store) RefusedAgents(ctx context.Context) ([]lease.RefusedAgent, error) {
	cctx, cancel := context.WithTimeout(ctx, etcd.CallTimeout)
	defer cancel()
	resp, err := s.cli.Get(cctx, s.layout.Agent(""), clientv3.WithPrefix())
	if err != nil {
		return nil, etcd.Explain(ctx, s.cli, "list the agents that are refused", err, true)
	}
	return lease.ReadRefused(s.layout, resp.Kvs), nil
}
