package embedetcd

import "go.etcd.io/etcd/server/v3/features"

// OwnPort is the address that etcd itself listens at.
func (s *Server) OwnPort() string { return s.etcd.Clients[0].Addr().String() }

// Checkpoints reports whether etcd records how much time leases have left.
func (s *Server) Checkpoints() bool { return s.etcd.Server.FeatureEnabled(features.LeaseCheckpoint) }
