package program

import (
	"context"
	"errors"
	"io"
	"strings"
	"time"

	"github.com/sirupsen/logrus"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/pdmesh/pdmesh/internal/agent"
	"github.com/pdmesh/pdmesh/internal/bootstrap"
	"github.com/pdmesh/pdmesh/internal/discovery/etcd"
	"github.com/pdmesh/pdmesh/internal/discovery/lease"
	"github.com/pdmesh/pdmesh/internal/discovery/schema"
	"github.com/pdmesh/pdmesh/internal/etcdaccess"
	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/internal/logging"
	"github.com/pdmesh/pdmesh/internal/version"
	"github.com/pdmesh/pdmesh/internal/wrap"
)

// service is what a running agent needs.
type service struct {
	config
	log            *logrus.Logger
	stdout, stderr io.Writer // of a wrapped engine
	whole          bool      // see program

	layout schema.Layout
	orders *orders
	ctl    *control
	cli    *clientv3.Client
	certs  certificates
	notify *notifier
	reaper *wrap.Reaper // nil where nothing is reaped
}

// serve wires the parts and stops them in order: the agent drains and revokes,
// then the registrar's renewal ends, a wrapped engine is told to end, then the
// connection to etcd is closed. Nothing that etcd does or does not do ends it;
// only what cannot be right does. code is the exit code when err is nil.
func serve(ctx context.Context, s service) (code int, err error) {
	if s.layout, err = schema.NewLayout(s.etcdPrefix); err != nil {
		return 1, err
	}
	log := s.log
	if s.certs, err = open(s.tls, log); err != nil {
		return 1, err
	}
	defer s.certs.watch(ctx)()
	if s.zmqRegister != "" {
		return s.bridge(ctx)
	}
	log.WithFields(logrus.Fields{
		logging.FieldRole: s.key.Role, logging.FieldInstance: s.key.Address, "engine": s.engine,
		"etcd": strings.Join(s.etcdEndpoints, ","), "ttl": s.ttl, "host_id": s.hostID,
	}).Info("pd-agent " + version.String())
	for _, n := range s.notes {
		log.Warn(n)
	}
	ctx, o, drain, stopListening := listen(ctx, s.command != nil, log)
	defer stopListening()
	s.orders = o
	defer s.reap(ctx)()

	locked, err := lock(ctx, s.config, log)
	if err != nil {
		return 1, err
	}
	if locked == nil {
		return 0, nil
	}
	defer func() { _ = locked.Close() }()
	stopNotices, err := relayNotices(ctx, &s.config, log)
	if err != nil {
		return 1, err
	}
	defer stopNotices()
	ctl, stopControl, err := startControl(ctx, s.config, drain, log)
	if err != nil {
		return 1, err
	}
	defer stopControl()
	s.ctl = ctl
	if s.cli, err = dial(s.config, s.certs, log); err != nil {
		return 1, err
	}
	defer func() { _ = s.cli.Close() }()
	defer s.tellAfar(ctx)()
	s.notify = newNotifier(s.config, ctl, log)
	stopNotifying := s.notify.start(ctx)
	defer stopNotifying()
	if s.command != nil {
		return s.supervise(ctx)
	}
	s.notify.ready()
	return 0, s.live(ctx, nil)
}

// live runs an agent and its registrar until the agent's life is over; exited
// ends it too, if not nil.
func (s *service) live(ctx context.Context, exited <-chan struct{}) error {
	log := s.log
	var ag *agent.Agent
	reg := lease.NewRegistrar(s.cli, lease.RegistrarOptions{
		Layout: s.layout, Key: s.key, TTL: s.ttl, HostID: s.hostID,
		Log: log.WithField(logging.FieldComponent, "registrar"),
		// While etcd is away the registration is most likely still there.
		OnEvent: func(st lease.Status) {
			ag.Registered(st.Phase == lease.Registered || st.Phase == lease.Unknown)
		},
	})
	client := s.certs.client(s.engineAPIKey)
	ag = agent.New(&agent.HTTPEngine{Client: client, Base: s.engine}, reg, agent.Options{
		Key: s.key, Model: s.model, StrictModel: s.strictModel, Base: s.record(),
		EngineIDs: s.engineIDs(), ProbeInterval: s.probeInterval, ProbeTimeout: s.probeTimeout, SlowAfter: s.slowAfter, DrainTimeout: s.drainTimeout, KVLease: s.kvLease,
		Exited: exited, Log: log.WithField(logging.FieldComponent, "agent"),
	})

	s.ctl.life.Store(&parts{agent: ag, registrar: reg})

	// The registration outlives ctx: it is what the drain is announced by.
	rctx, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	regDone := make(chan error, 1)
	go func() { regDone <- reg.Run(rctx) }()
	sideDone := make(chan struct{})
	go func() {
		defer close(sideDone)
		beside(rctx, s.orders.more, ag, reg, log)
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

// engineIDs is how the agent asks a Mooncake prefill engine, nil for all others.
func (s *service) engineIDs() func(context.Context) (map[string]string, error) {
	if s.bootstrap == "" {
		return nil
	}
	return func(ctx context.Context) (map[string]string, error) { return bootstrap.Query(ctx, nil, s.bootstrap) }
}

// Times of the complaints about a registration that does not come about.
const (
	reportPoll  = time.Second
	reportAgain = time.Minute
)

// beside passes a hurry on, and says from time to time why etcd does not have
// the registration yet: the registrar itself speaks at changes only.
func beside(ctx context.Context, hurry <-chan struct{}, ag *agent.Agent, reg *lease.Registrar, log logrus.FieldLogger) {
	tick := time.NewTicker(reportPoll)
	defer tick.Stop()
	var last time.Time
	for {
		select {
		case <-ctx.Done():
			return
		case <-hurry:
			ag.Hurry()
			hurry = nil // the next one is for the engine
		case <-tick.C:
			st := reg.Status()
			switch {
			case st.Phase != lease.Registering:
				last = time.Time{}
			case st.Err != "" && time.Since(last) > reportAgain:
				last = time.Now()
				log.WithField(logging.FieldReason, instance.Printable(st.Err, 400)).Warn("not registered yet; trying on")
			}
		}
	}
}

// dial makes the client of the registrar. It waits for nothing: logging in is
// part of the first call, and tried again with it.
func dial(c config, own certificates, log logrus.FieldLogger) (*clientv3.Client, error) {
	return etcd.Dial(etcd.Config{
		Endpoints: c.etcdEndpoints, Username: c.etcdUsername, Password: c.etcdPassword,
		TLS: etcdaccess.ConfigOf(own.etcd),
		Log: log.WithField(logging.FieldComponent, "etcd"),
	})
}
