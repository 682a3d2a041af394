package main

import (
	"context"
	"errors"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/pdmesh/pdmesh/internal/discovery"
	"github.com/pdmesh/pdmesh/internal/logging"
	"github.com/pdmesh/pdmesh/internal/netguard"
	"github.com/pdmesh/pdmesh/internal/version"
	"github.com/pdmesh/pdmesh/internal/vllm"
	"github.com/pdmesh/pdmesh/internal/zmqregister"
)

// bridge registers the engines that ping, until ctx or a signal ends it.
func (s *service) bridge(ctx context.Context) (code int, err error) {
	ctx, _, _, stopListening := listen(ctx, false, s.log)
	defer stopListening()
	s.log.WithFields(logrus.Fields{
		"zmq_register": s.zmqRegister, "etcd": strings.Join(s.etcdEndpoints, ","), "ttl": s.ttl, "host_id": s.hostID,
	}).Info("pd-agent " + version.String())
	cli, err := dial(s.config, s.certs, s.log)
	if err != nil {
		return 1, err
	}
	defer func() { _ = cli.Close() }()
	b, err := zmqregister.Listen(ctx, zmqregister.Options{
		Endpoint: s.zmqRegister, Client: guarded(vllm.New(s.engineAPIKey)),
		Registrar: func(o discovery.RegistrarOptions) *discovery.Registrar {
			o.Layout = s.layout
			return discovery.NewRegistrar(cli, o)
		},
		Agent: "pd-agent/" + version.Version, HostID: s.hostID, TTL: s.ttl, Model: s.model, StrictModel: s.strictModel,
		AllowLoopback: s.allowLoopback, ProbeInterval: s.probeInterval, ProbeTimeout: s.probeTimeout, SlowAfter: s.slowAfter,
		Log: s.log.WithField(logging.FieldComponent, "zmq-register"),
	})
	if err != nil {
		return 1, err
	}
	if err := b.Run(ctx); err != nil && !errors.Is(err, context.Canceled) {
		return 1, err
	}
	s.log.Info("the registrations stay until their leases end")
	return 0, nil
}

// guarded asks no address that no engine has: these are from whoever reaches the port.
func guarded(c *vllm.Client) *vllm.Client {
	d := net.Dialer{Timeout: time.Minute, Control: netguard.New(nil).Control}
	c.HTTP = &http.Client{Transport: &http.Transport{
		DialContext: d.DialContext, DisableKeepAlives: true, MaxResponseHeaderBytes: 64 << 10,
	}}
	return c
}
