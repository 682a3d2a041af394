package program

import (
	"context"
	"errors"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/pdmesh/pdmesh/internal/agent"
	"github.com/pdmesh/pdmesh/internal/agent/agentctl"
	"github.com/pdmesh/pdmesh/internal/agent/control"
	"github.com/pdmesh/pdmesh/internal/agent/zmqregister"
	"github.com/pdmesh/pdmesh/internal/cli/background"
	"github.com/pdmesh/pdmesh/internal/cli/version"
	"github.com/pdmesh/pdmesh/internal/discovery/lease"
	"github.com/pdmesh/pdmesh/internal/engine/vllm"
	"github.com/pdmesh/pdmesh/internal/observe/metrics/bridgemetrics"
	"github.com/pdmesh/pdmesh/internal/observe/metrics/scraped"
	"github.com/pdmesh/pdmesh/internal/transport/netguard"
)

// bridge registers the engines that ping, until ctx or a signal ends it.
func (s *service) bridge(ctx context.Context) (code int, err error) {
	ctx, _, drain, stopListening := listen(ctx, s.log)
	defer stopListening()
	s.log.WithFields(logrus.Fields{
		"zmq_register": s.ZMQRegister, "etcd": strings.Join(s.EtcdEndpoints, ","), "etcd_prefix": s.EtcdPrefix, "ttl": s.TTL, "host_id": s.HostID,
	}).Info("pdmesh-agent " + version.String())
	cli, err := dial(s.Config, s.certs, s.log)
	if err != nil {
		return 1, err
	}
	defer func() { _ = cli.Close() }()
	defer followMembers(ctx, cli, s.TTL, s.log)()
	agents := s.Options
	agents.Base.Agent = "pd-agent/" + version.Version
	b, err := zmqregister.Listen(ctx, zmqregister.Options{
		Endpoint: s.ZMQRegister, Client: restrictDials(vllm.New(s.EngineAPIKey)),
		Registrar: func(o lease.RegistrarOptions) *lease.Registrar {
			o.Layout = s.layout
			return lease.NewRegistrar(cli, o)
		},
		Agents: agents, HostID: s.HostID, TTL: s.TTL, AllowLoopback: s.AllowLoopback,
		Log: s.logFor("zmq-register"),
	})
	if err != nil {
		return 1, err
	}
	stopControl, err := s.serveControl(ctx, agentctl.Source{
		Report: func() agentctl.Report {
			return agentctl.Report{
				ID: s.id, Version: version.String(), Etcd: s.EtcdEndpoints, EtcdPrefix: s.EtcdPrefix, Phase: string(agent.Serving),
				ZMQRegister: s.ZMQRegister, Registered: b.Counts().Instances, Certificates: s.certs.findings(),
			}
		},
		Drain: drain, Metrics: scraped.Handler(bridgemetrics.Collector(b.Counts), control.CertificateProblems(s.certs.findings)),
	})
	if err != nil {
		return 1, errors.Join(err, b.Close())
	}
	defer stopControl()
	s.notifyReady()
	defer background.Start(ctx, s.watchdog)()
	if err := b.Run(ctx); err != nil && !errors.Is(err, context.Canceled) {
		return 1, err
	}
	s.log.Info("registrations remain until their leases expire")
	return 0, nil
}

// restrictDials restricts a client to addresses that engines may have, because any program that
// reaches the ZeroMQ port can send an address.
func restrictDials(c *vllm.Client) *vllm.Client {
	d := net.Dialer{Timeout: time.Minute, Control: netguard.New(nil).Control}
	c.HTTP = &http.Client{Transport: &http.Transport{
		DialContext: d.DialContext, DisableKeepAlives: true, MaxResponseHeaderBytes: 64 << 10,
	}}
	return c
}
