package proxy

import (
	"context"
	"os"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/sirupsen/logrus"

	"github.com/pdmesh/pdmesh/internal/agent"
	"github.com/pdmesh/pdmesh/internal/agent/zmqregister"
	"github.com/pdmesh/pdmesh/internal/cli/version"
	"github.com/pdmesh/pdmesh/internal/discovery/lease"
	"github.com/pdmesh/pdmesh/internal/observe/metrics/bridgemetrics"
	"github.com/pdmesh/pdmesh/internal/proxy/config"
	"github.com/pdmesh/pdmesh/internal/proxy/engines"
	"github.com/pdmesh/pdmesh/internal/proxy/secure"
	"github.com/pdmesh/pdmesh/internal/transport/netguard"
)

// countPings registers the metrics of a bridge.
func countPings(registry prometheus.Registerer, b *zmqregister.Bridge) {
	bridgemetrics.Bridge(b.Counts).Register(registry)
}

// newBridge binds the port of --zmq-register. It is nil without that flag. registrar is
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
		Agent: "pdmesh-proxy/" + version.Version, HostID: host, Model: cfg.Model,
		AllowLoopback: cfg.EtcdIsLoopback(), ProbeTimeout: cfg.ProbeTimeout,
		Log: log.WithField("component", "zmq-register"),
	})
}
