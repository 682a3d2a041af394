package embedetcd

// OwnPort is the address that etcd itself listens at.
func (s *Server) OwnPort() string { return s.etcd.Clients[0].Addr().String() }
