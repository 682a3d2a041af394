package program

import (
	"context"
	"crypto/rand"
	"io"
	"os"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/sirupsen/logrus"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/pdmesh/pdmesh/internal/agent"
	"github.com/pdmesh/pdmesh/internal/agent/agentctl"
	"github.com/pdmesh/pdmesh/internal/agent/control"
	"github.com/pdmesh/pdmesh/internal/agent/setup"
	"github.com/pdmesh/pdmesh/internal/agent/wrap"
	"github.com/pdmesh/pdmesh/internal/cli/background"
	"github.com/pdmesh/pdmesh/internal/cli/version"
	"github.com/pdmesh/pdmesh/internal/discovery/access"
	"github.com/pdmesh/pdmesh/internal/discovery/etcd"
	"github.com/pdmesh/pdmesh/internal/discovery/lease"
	"github.com/pdmesh/pdmesh/internal/discovery/schema"
	"github.com/pdmesh/pdmesh/internal/engine/bootstrap"
	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/internal/observe/logging"
)

// service is a running agent.
type service struct {
	setup.Config
	log            *logrus.Logger
	stdout, stderr io.Writer // of a wrapped engine
	ownsProcess    bool      // see program

	layout       schema.Layout
	id           string // of this process
	signals      *signals
	cli          *clientv3.Client
	certs        certificates
	reaper       *wrap.Reaper // nil if this process reaps no orphans
	process      engineState
	registration atomic.Pointer[registration] // nil between two starts of an engine, and with --zmq-register
}

// logFor returns the log of a component.
func (s *service) logFor(component string) logrus.FieldLogger {
	return s.log.WithField(logging.FieldComponent, component)
}

// serve starts the parts and stops them in order: the agent drains and revokes, the registrar
// stops renewing, the engine is stopped, and the connection to etcd is closed. Outages of etcd
// do not end it. code is the exit code if err is nil.
func serve(ctx context.Context, s *service) (code int, err error) {
	s.id = rand.Text()
	if s.layout, err = schema.NewLayout(s.EtcdPrefix); err != nil {
		return 1, err
	}
	log := s.log
	if s.certs, err = open(s.TLS, log); err != nil {
		return 1, err
	}
	defer s.certs.watch(ctx)()
	if s.ZMQRegister != "" {
		return s.bridge(ctx)
	}
	log.WithFields(logrus.Fields{
		logging.FieldRole: s.Key.Role, logging.FieldInstance: s.Key.Address, "engine": s.Engine,
		"etcd": strings.Join(s.EtcdEndpoints, ","), "etcd_prefix": s.EtcdPrefix, "ttl": s.TTL, "host_id": s.HostID,
	}).Info("pdmesh-agent " + version.String())
	for _, n := range s.Notes {
		log.Warn(n)
	}
	ctx, o, drain, stopListening := listen(ctx, log)
	defer stopListening()
	s.signals = o
	defer s.reap(ctx)()

	locked, err := lock(ctx, s.Config, log)
	if err != nil {
		return 1, err
	}
	if locked == nil {
		return 0, nil
	}
	defer locked.release()
	stopNotices, err := relayNotices(ctx, &s.Config, log)
	if err != nil {
		return 1, err
	}
	defer stopNotices()
	stopControl, err := s.serveControl(ctx, agentctl.Source{Report: s.report, Drain: drain, Metrics: control.MetricsHandler(s.report, s.certs.findings)})
	if err != nil {
		return 1, err
	}
	defer stopControl()
	if s.cli, err = dial(s.Config, s.certs, log); err != nil {
		return 1, err
	}
	defer func() { _ = s.cli.Close() }()
	defer followMembers(ctx, s.cli, s.TTL, log)()
	defer s.publishRefusal(ctx)()
	defer background.Start(ctx, s.watchdog, func(bg context.Context) { s.notifyStatus(bg, ctx.Done()) })()
	if s.Command != nil {
		return s.supervise(ctx)
	}
	s.notifyReady()
	s.runAgent(ctx, nil)
	return 0, nil
}

// runAgent runs an agent and its registrar until ctx ends or exited, which may be nil, is closed.
func (s *service) runAgent(ctx context.Context, exited <-chan struct{}) {
	log := s.log
	var ag *agent.Agent
	reg := lease.NewRegistrar(s.cli, lease.RegistrarOptions{
		Layout: s.layout, Key: s.Key, TTL: s.TTL, HostID: s.HostID,
		Log:     s.logFor("registrar"),
		OnEvent: func(st lease.Status) { ag.Registered(st.Phase.Holds()) },
	})
	client := s.certs.client(s.EngineAPIKey)
	o := s.Options
	o.Base, o.EngineIDs, o.ShutdownDelay = s.Record(), s.engineIDs(), s.shutdownDelay
	o.Exited, o.Log = exited, s.logFor("agent")
	ag = agent.New(&agent.HTTPEngine{Client: client, Base: s.Engine}, reg, o)

	s.registration.Store(&registration{ag, reg})

	stop := background.Start(ctx, reg.Run) // it outlives ctx, because it publishes the drain
	stopSide := background.Start(ctx, func(ctx context.Context) { remind(ctx, s.signals.skipWait, ag, reg, log) })

	if err := ag.Run(ctx); err != nil {
		log.WithError(err).Warn("cannot revoke the registration; it ends with its lease")
	}
	stop()
	stopSide()
	log.Info("agent ended")
}

// shutdownDelay returns --shutdown-delay, or 0 if the drain was ordered by SIGINT.
func (s *service) shutdownDelay() time.Duration {
	if syscall.Signal(s.signals.sig.Load()) == syscall.SIGINT {
		return 0
	}
	return s.ShutdownDelay
}

// engineIDs returns the query for the ids of a Mooncake prefill engine, nil for other engines.
func (s *service) engineIDs() func(context.Context) (map[string]string, error) {
	if s.Bootstrap == "" {
		return nil
	}
	return func(ctx context.Context) (map[string]string, error) { return bootstrap.Query(ctx, nil, s.Bootstrap) }
}

// Intervals of remind.
const (
	reportPoll  = time.Second
	reportAgain = time.Minute
)

// remind passes a second signal to the agent, and logs periodically why the instance is not
// registered yet: the registrar logs changes only.
func remind(ctx context.Context, hurry <-chan struct{}, ag *agent.Agent, reg *lease.Registrar, log logrus.FieldLogger) {
	tick := time.NewTicker(reportPoll)
	defer tick.Stop()
	var last time.Time
	for {
		select {
		case <-ctx.Done():
			return
		case <-hurry:
			ag.Hurry()
			hurry = nil // the next signal is for the engine
		case <-tick.C:
			st := reg.Status()
			switch {
			case st.Phase != lease.Registering:
				last = time.Time{}
			case st.Err != "" && time.Since(last) > reportAgain:
				last = time.Now()
				log.WithField(logging.FieldReason, instance.Printable(st.Err, 400)).Warn("not registered yet; retrying")
			}
		}
	}
}

// dial makes the etcd client of the registrar. It does not wait: the first call logs in.
func dial(c setup.Config, own certificates, log logrus.FieldLogger) (*clientv3.Client, error) {
	return etcd.Dial(etcd.Config{
		Endpoints: c.EtcdEndpoints, Username: c.EtcdUsername, Password: c.EtcdPassword,
		TLS: access.ConfigOf(own.etcd),
		Log: log.WithField(logging.FieldComponent, "etcd"),
	})
}

// followMembers keeps the endpoints of a client up to date with the members of its cluster.
// An agent has no state directory: after a restart it knows the configured endpoints only. stop
// waits.
func followMembers(ctx context.Context, cli *clientv3.Client, ttl time.Duration, log logrus.FieldLogger) (stop func()) {
	return background.Start(ctx, etcd.NewMembers(etcd.MembersOptions{Client: cli, Interval: 2 * ttl, Log: log.WithField(logging.FieldComponent, "etcd")}).Run)
}

// publishRefusal writes to etcd why the instance is not registered, and deletes the reason once it no
// longer applies. pdctl doctor on other machines reads it. stop waits.
func (s *service) publishRefusal(ctx context.Context) (stop func()) {
	w := lease.NewRefusedWriter(s.cli, s.layout, s.id, s.TTL, s.logFor("refusal"))
	host, err := os.Hostname()
	if err != nil {
		host = ""
	}
	report := func() *lease.RefusedAgent {
		r := s.report()
		why := r.Refused()
		if why == "" {
			return nil
		}
		return &lease.RefusedAgent{
			ID: s.id, Role: r.Role, Address: r.Address, Host: instance.Printable(host, 80), Agent: "pd-agent/" + version.Version,
			Phase: r.Phase, Registration: lease.Phase(r.Registration.Phase), Reason: why,
		}
	}
	ctx, cancel := context.WithCancel(ctx)
	wait := background.Start(ctx, func(context.Context) { w.Run(ctx, report) })
	return func() { cancel(); wait() }
}
