package proxy

import (
	"context"
	"os"

	"github.com/sirupsen/logrus"

	"github.com/pdmesh/pdmesh/internal/agent"
	"github.com/pdmesh/pdmesh/internal/agent/zmqregister"
	"github.com/pdmesh/pdmesh/internal/cli/version"
	"github.com/pdmesh/pdmesh/internal/discovery/lease"
	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/internal/proxy/config"
	"github.com/pdmesh/pdmesh/internal/proxy/engines"
	"github.com/pdmesh/pdmesh/internal/proxy/secure"
	"github.com/pdmesh/pdmesh/internal/transport/netguard"
)

// newBridge listens at the address of --zmq-register. It returns nil without that flag. registrar is
// called only when the bridge runs.
func newBridge(ctx context.Context, cfg *config.Proxy, certificates *secure.Certificates, log *logrus.Logger, registrar func(lease.RegistrarOptions) *lease.Registrar) (*zmqregister.Bridge, error) {
	if cfg.ZMQRegister == "" {
		return nil, nil
	}
	host, err := agent.HostID(os.DirFS("/"), os.Readlink)
	if err != nil {
		return nil, err
	}
	return zmqregister.Listen(ctx, zmqregister.Options{
		Endpoint: cfg.ZMQRegister, Registrar: registrar, Client: engines.NewProber(cfg, netguard.New(cfg.InstanceAllow), certificates).Client,
		Agents: agent.Options{Base: instance.Record{Agent: "pdmesh-proxy/" + version.Version}, Model: cfg.Model, ProbeTimeout: cfg.ProbeTimeout},
		HostID: host, AllowLoopback: cfg.EtcdIsLoopback(),
		Log: log.WithField("component", "zmq-register"),
	})
}
