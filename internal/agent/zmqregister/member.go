package zmqregister

import (
	"context"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/pdmesh/pdmesh/internal/agent"
	"github.com/pdmesh/pdmesh/internal/cli/background"
	"github.com/pdmesh/pdmesh/internal/connector"
	"github.com/pdmesh/pdmesh/internal/discovery/lease"
	"github.com/pdmesh/pdmesh/internal/engine/vllm"
	"github.com/pdmesh/pdmesh/internal/instance"
)

// member is one instance that pings. The goroutine of Bridge.Run uses everything except run.
type member struct {
	ping   Ping
	pinged time.Time
	leave  context.CancelFunc // ends run
	ended  bool
	log    logrus.FieldLogger
}

// run runs the instance's agent until exited is closed. After the end of ctx, it leaves the
// registration in etcd.
func (m *member) run(ctx context.Context, exited <-chan struct{}, o *Options) {
	var ag *agent.Agent
	reg := o.Registrar(lease.RegistrarOptions{
		Key: m.ping.Key, HostID: o.HostID, TTL: o.TTL, Log: m.log,
		OnEvent: func(s lease.Status) { ag.Registered(s.Phase.Holds()) },
	})
	a := o.Agents
	a.Key, a.Exited, a.Log = m.ping.Key, exited, m.log
	a.Base.Connector, a.Base.TransferMode, a.Base.ZMQAddress = connector.MoRIIO, m.ping.Mode, m.ping.ZMQ.String()
	a.Base.DPSize, a.Base.TPSize, a.Base.HostID = m.ping.DPSize, m.ping.TPSize, o.HostID
	ag = agent.New(&agent.HTTPEngine{Client: o.Client, Base: vllm.BaseURL(&instance.Instance{Key: m.ping.Key})}, registration{reg, ctx}, a)
	stop := background.Start(ctx, reg.Run)
	if err := ag.Run(context.WithoutCancel(ctx)); err != nil {
		m.log.WithError(err).Warn("the registration could not be taken back; it ends with its lease")
	}
	stop()
}

// registration is a registrar whose key stays when the bridge stops: its engine continues to
// serve, and the next bridge takes the key over.
type registration struct {
	*lease.Registrar
	ctx context.Context //nolint:containedctx // it is the bridge's life
}

func (r registration) Set(rec instance.Record) {
	if r.ctx.Err() == nil {
		r.Registrar.Set(rec)
	}
}

func (r registration) Settle(ctx context.Context) bool {
	return r.ctx.Err() != nil || r.Registrar.Settle(ctx)
}

func (r registration) Revoke(ctx context.Context) error {
	if r.ctx.Err() != nil {
		return nil //nolint:nilerr // its registration has ended: nothing is left to revoke
	}
	return r.Registrar.Revoke(ctx) //nolint:wrapcheck // the agent says what it was
}
