package embedetcd

import "go.etcd.io/etcd/server/v3/features"

// OwnPort returns the address at which etcd itself listens.
func (s *Server) OwnPort() string { return s.etcd.Clients[0].Addr().String() }

// Checkpoints reports whether etcd persists the remaining TTL of leases.
func (s *Server) Checkpoints() bool { return s.etcd.Server.FeatureEnabled(features.LeaseCheckpoint) }
