// Package control implements the local socket of a running agent, with report and drain, and the
// subcommands that use it.
package control

import (
	"context"
	"crypto/rand"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/pdmesh/pdmesh/internal/agent"
	"github.com/pdmesh/pdmesh/internal/agent/agentctl"
	"github.com/pdmesh/pdmesh/internal/agent/setup"
	"github.com/pdmesh/pdmesh/internal/cli/background"
	"github.com/pdmesh/pdmesh/internal/cli/version"
	"github.com/pdmesh/pdmesh/internal/discovery/lease"
	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/internal/observe/logging"
)

// SocketOff is the value of --socket that turns local control off.
const SocketOff = "off"

// Control is the agent's local control. It can be asked from the start.
type Control struct {
	ID     string // of this process
	c      setup.Config
	certs  func() []string // problems with certificates
	Life   atomic.Pointer[Parts]
	Engine engineState
}

// Parts are what a running agent consists of.
type Parts struct {
	Agent     *agent.Agent
	Registrar *lease.Registrar
}

// Start opens the socket. A socket that was asked for must work; without
// the default one an agent is still an agent. certs returns the problems with certificates. stop is
// never nil and waits.
func Start(ctx context.Context, c setup.Config, drain func(), certs func() []string, log logrus.FieldLogger) (ctl *Control, stop func(), err error) {
	ctl = &Control{ID: rand.Text(), c: c, certs: certs}
	if c.Socket == SocketOff {
		return ctl, func() {}, nil
	}
	lis, err := openSocket(ctx, c)
	switch {
	case err != nil && c.Socket != "":
		return nil, nil, err
	case err != nil:
		log.WithError(err).Warn("no local control: pdmesh-agent status, drain and health will not find this agent")
		return ctl, func() {}, nil
	}
	log.WithField("socket", lis.Addr().String()).Debug("local control")
	// It outlives ctx: a drain is watched through it.
	return ctl, background.Start(ctx, func(ctx context.Context) {
		agentctl.Serve(ctx, lis, agentctl.Source{
			Report: ctl.Report, Drain: drain,
			Metrics: metricsHandler(ctl.Report, ctl.certs),
		}, log.WithField(logging.FieldComponent, "control"))
	}), nil
}

func openSocket(ctx context.Context, c setup.Config) (net.Listener, error) {
	path := c.Socket
	if path == "" {
		var err error
		if path, err = agentctl.DefaultPath(c.Key, os.Getenv); err != nil {
			return nil, err
		}
	}
	return agentctl.Listen(ctx, path)
}

// Report puts together what the parts say.
func (ctl *Control) Report() agentctl.Report {
	r := agentctl.Report{
		ID: ctl.ID, Version: version.String(), Role: ctl.c.Key.Role, Address: ctl.c.Key.Address, Engine: ctl.c.Engine,
		Etcd: ctl.c.EtcdEndpoints, EtcdPrefix: ctl.c.EtcdPrefix,
		Phase: string(agent.Probing), Registration: agentctl.Registration{Phase: string(lease.Idle)},
		Process: ctl.Engine.report(), Certificates: ctl.certs(),
	}
	p := ctl.Life.Load()
	if p == nil {
		if r.Reason = "starting"; r.Process != nil && r.Process.PID == 0 && r.Process.LastExit != "" {
			r.Phase, r.Reason = string(agent.Restarting), "the engine has failed: "+r.Process.LastExit
		}
		return r
	}
	a, g := p.Agent.Status(), p.Registrar.Status()
	r.Phase, r.Reason = string(a.Phase), a.Reason
	r.State, r.Incarnation, r.Models = a.Record.State, a.Record.ID, a.Record.Models
	r.Registration = agentctl.Registration{
		Phase: string(g.Phase), Reason: g.Err, Revision: g.ModRevision,
		Renewals: g.Renewals, RenewalFails: g.RenewalFails, LeasesLost: g.LeasesLost,
		Registrations: g.Registrations, Conflicts: g.Conflicts,
	}
	if g.LeaseID != 0 {
		r.Registration.Lease = strconv.FormatInt(g.LeaseID, 16)
	}
	if !g.LastRenewal.IsZero() {
		r.Registration.LastRenewal = &g.LastRenewal
		r.Registration.AgeSeconds = time.Since(g.LastRenewal).Seconds()
	}
	return r
}

// showReport writes a report as text.
func showReport(w io.Writer, r agentctl.Report) {
	line := func(name, format string, args ...any) {
		fmt.Fprintf(w, "%-14s "+format+"\n", append([]any{name}, args...)...)
	}
	if r.ZMQRegister != "" {
		line("zmq-register", "%s, %d engines", r.ZMQRegister, r.Registered)
	} else {
		line("instance", "%s/%s", r.Role, r.Address)
		line("engine", "%s", r.Engine)
	}
	line("phase", "%s", WithReason(r.Phase, r.Reason))
	if r.EtcdPrefix != "" { // of an older agent it is not known
		line("etcd", "%s, prefix %s", strings.Join(r.Etcd, ","), r.EtcdPrefix)
	}
	if p := r.Process; p != nil {
		showProcess(line, p)
	}
	if r.Incarnation != "" {
		line("incarnation", "%s", r.Incarnation)
		for _, m := range r.Models {
			line("model", "%s", instance.Printable(m, 256))
		}
	}
	g := r.Registration
	if g.Phase != "" {
		line("registration", "%s", WithReason(g.Phase, g.Reason))
	}
	if g.Lease != "" {
		line("lease", "%s, renewed %s ago, %d renewals, %d failed, %d lost", g.Lease,
			rounded(g.AgeSeconds), g.Renewals, g.RenewalFails, g.LeasesLost)
	}
	if g.Revision != 0 {
		line("revision", "%d, written %d times under a new lease", g.Revision, g.Registrations)
	}
	if g.Conflicts > 0 {
		line("conflicts", "%d", g.Conflicts)
	}
	for _, text := range r.Certificates {
		line("certificates", "%s", text)
	}
}

func showProcess(line func(name, format string, args ...any), p *agentctl.Process) {
	switch {
	case p.PID != 0:
		line("process", "%d, for %s", p.PID, rounded(p.AgeSeconds))
	case p.NextStartSeconds > 0:
		line("process", "none, next start in %s", rounded(p.NextStartSeconds))
	default:
		line("process", "none")
	}
	line("starts", "%d", p.Starts)
	if p.LastExit != "" {
		line("last exit", "%s", instance.Printable(p.LastExit, 200))
	}
}

// rounded returns a number of seconds for output.
func rounded(seconds float64) time.Duration {
	return time.Duration(seconds * float64(time.Second)).Round(100 * time.Millisecond)
}

// WithReason returns a phase with its reason, which is made printable, for output.
func WithReason(phase, reason string) string {
	if reason == "" {
		return phase
	}
	return phase + ": " + instance.Printable(reason, 400)
}
