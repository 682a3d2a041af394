package main

import (
	"context"
	"errors"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/sirupsen/logrus"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/pdmesh/pdmesh/internal/agent"
	"github.com/pdmesh/pdmesh/internal/discovery"
	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/internal/logging"
	"github.com/pdmesh/pdmesh/internal/version"
	"github.com/pdmesh/pdmesh/internal/vllm"
)

// serve wires the parts and stops them in order: the agent drains and revokes,
// then the registrar's renewal ends, then the connection to etcd. Nothing that
// etcd does or does not do ends it; only what cannot be right does.
func serve(ctx context.Context, c config, log *logrus.Logger) error {
	layout, err := discovery.NewLayout(c.etcdPrefix)
	if err != nil {
		return err
	}
	log.WithFields(logrus.Fields{
		logging.FieldRole: c.key.Role, logging.FieldInstance: c.key.Address, "engine": c.engine,
		"etcd": strings.Join(c.etcdEndpoints, ","), "ttl": c.ttl, "host_id": c.hostID,
	}).Info("pd-agent " + version.String())

	sigs := make(chan os.Signal, 2)
	signal.Notify(sigs, syscall.SIGTERM, syscall.SIGINT)
	defer signal.Stop(sigs)
	ctx, drain := context.WithCancel(ctx)
	defer drain()
	hurry := make(chan struct{})
	listening := make(chan struct{})
	over := make(chan struct{})
	go func() {
		defer close(listening)
		select {
		case s := <-sigs:
			log.Infof("%s: draining; a second signal skips the wait", s)
			drain()
		case <-ctx.Done():
		}
		select {
		case s := <-sigs:
			log.Warnf("%s again: not waiting for the engine", s)
			close(hurry)
		case <-over:
		}
	}()
	defer func() { drain(); close(over); <-listening }()

	locked, err := lock(ctx, c, log)
	if err != nil {
		return err
	}
	if locked == nil {
		return nil
	}
	defer func() { _ = locked.Close() }()
	ctl, stopControl, err := startControl(ctx, c, drain, log)
	if err != nil {
		return err
	}
	defer stopControl()
	cli, err := dial(c, log)
	if err != nil {
		return err
	}
	defer func() { _ = cli.Close() }()
	return live(ctx, hurry, ctl, cli, layout, log)
}

// live runs the agent and its registrar until the agent's life is over.
func live(ctx context.Context, hurry <-chan struct{}, ctl *control, cli *clientv3.Client, layout discovery.Layout, log *logrus.Logger) error {
	c := ctl.c
	var ag *agent.Agent
	reg := discovery.NewRegistrar(cli, discovery.RegistrarOptions{
		Layout: layout, Key: c.key, TTL: c.ttl, HostID: c.hostID,
		Log: log.WithField(logging.FieldComponent, "registrar"),
		// While etcd is away the registration is most likely still there.
		OnEvent: func(st discovery.RegistrationStatus) {
			ag.Registered(st.Phase == discovery.Registered || st.Phase == discovery.Unknown)
		},
	})
	client := vllm.New(c.engineAPIKey)
	ag = agent.New(&agent.HTTPEngine{Client: client, Base: c.engine}, reg, agent.Options{
		Key: c.key, Model: c.model, StrictModel: c.strictModel, Base: base(c),
		ProbeInterval: c.probeInterval, ProbeTimeout: c.probeTimeout, DrainTimeout: c.drainTimeout, KVLease: c.kvLease,
		Log: log.WithField(logging.FieldComponent, "agent"),
	})

	ctl.life.Store(&parts{agent: ag, registrar: reg})

	// The registration outlives ctx: it is what the drain is announced by.
	rctx, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	regDone := make(chan error, 1)
	go func() { regDone <- reg.Run(rctx) }()
	sideDone := make(chan struct{})
	go func() {
		defer close(sideDone)
		beside(rctx, hurry, ag, reg, log)
	}()

	if err := ag.Run(ctx); err != nil {
		log.WithError(err).Warn("the registration could not be taken back; it ends with its lease")
	}
	stop()
	<-sideDone
	if err := <-regDone; err != nil && !errors.Is(err, context.Canceled) {
		return err
	}
	log.Info("gone")
	return nil
}

// Times of the complaints about a registration that does not come about.
const (
	reportPoll  = time.Second
	reportAgain = time.Minute
)

// beside passes a hurry on, and says from time to time why etcd does not have
// the registration yet: the registrar itself speaks at changes only.
func beside(ctx context.Context, hurry <-chan struct{}, ag *agent.Agent, reg *discovery.Registrar, log logrus.FieldLogger) {
	tick := time.NewTicker(reportPoll)
	defer tick.Stop()
	var last time.Time
	for {
		select {
		case <-ctx.Done():
			return
		case <-hurry:
			ag.Hurry()
			hurry = nil
		case <-tick.C:
			st := reg.Status()
			switch {
			case st.Phase != discovery.Registering:
				last = time.Time{}
			case st.Err != "" && time.Since(last) > reportAgain:
				last = time.Now()
				log.WithField(logging.FieldReason, instance.Printable(st.Err, 400)).Warn("not registered yet; trying on")
			}
		}
	}
}

// base is what the flags say about the instance.
func base(c config) instance.Record {
	rec := instance.Record{
		Connector: c.connector, HostID: c.hostID, Agent: "pd-agent/" + version.Version, Labels: c.labels,
	}
	if strings.HasPrefix(c.engine, "https://") {
		rec.Scheme = "https"
	}
	if c.connector != "" {
		rec.KVRole = map[instance.Role]string{instance.Prefill: "kv_producer", instance.Decode: "kv_consumer"}[c.key.Role]
	}
	return rec
}

// dial makes the client of the registrar. It does not wait for etcd: a login
// that fails is tried again with every call.
func dial(c config, log logrus.FieldLogger) (*clientv3.Client, error) {
	return discovery.Dial(discovery.ClientConfig{
		Endpoints: c.etcdEndpoints, Username: c.etcdUsername, Password: c.etcdPassword,
		Log: log.WithField(logging.FieldComponent, "etcd"),
	})
}
