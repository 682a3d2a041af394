package program

import (
	"context"
	"net"
	"os"
	"strconv"
	"time"

	"github.com/pdmesh/pdmesh/internal/agent"
	"github.com/pdmesh/pdmesh/internal/agent/agentctl"
	"github.com/pdmesh/pdmesh/internal/agent/control"
	"github.com/pdmesh/pdmesh/internal/cli/background"
	"github.com/pdmesh/pdmesh/internal/cli/version"
	"github.com/pdmesh/pdmesh/internal/discovery/lease"
)

// serveControl serves the control socket until stop is called, also during a drain, which clients
// follow. stop waits. An error is fatal for a socket set by --socket, but not for the default one.
func (s *service) serveControl(ctx context.Context, source agentctl.Source) (stop func(), err error) {
	path := s.Socket
	switch {
	case path == control.SocketOff, path == "" && s.ZMQRegister != "": // without an instance there is no default name
		return func() {}, nil
	case path == "":
		path, err = agentctl.DefaultPath(s.Key, os.Getenv)
	}
	var lis net.Listener
	if err == nil {
		lis, err = agentctl.Listen(ctx, path)
	}
	switch {
	case err != nil && s.Socket != "":
		return nil, err
	case err != nil:
		s.log.WithError(err).Warn("no local control: pdmesh-agent status, drain and health will not find this agent")
		return func() {}, nil
	}
	s.log.WithField("socket", lis.Addr().String()).Debug("local control")
	return background.Start(ctx, func(ctx context.Context) { agentctl.Serve(ctx, lis, source, s.logFor("control")) }), nil
}

// registration has the agent and the registrar of an engine.
type registration struct {
	agent     *agent.Agent
	registrar *lease.Registrar
}

// report returns the state of the agent and its parts.
func (s *service) report() agentctl.Report {
	r := agentctl.Report{
		ID: s.id, Version: version.String(), Role: s.Key.Role, Address: s.Key.Address, Engine: s.Engine,
		Etcd: s.EtcdEndpoints, EtcdPrefix: s.EtcdPrefix,
		Phase: string(agent.Probing), Registration: agentctl.Registration{Phase: string(lease.Idle)},
		Process: s.process.report(), Certificates: s.certs.findings(),
	}
	p := s.registration.Load()
	if p == nil {
		if r.Reason = "starting"; r.Process != nil && r.Process.PID == 0 && r.Process.LastExit != "" {
			r.Phase, r.Reason = string(agent.Restarting), "the engine has failed: "+r.Process.LastExit
		}
		return r
	}
	a, g := p.agent.Status(), p.registrar.Status()
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
