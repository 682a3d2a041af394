// Package control has the subcommands that use the local socket of a running agent, the text of its
// report, and its metrics.
package control

import (
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/pdmesh/pdmesh/internal/agent/agentctl"
	"github.com/pdmesh/pdmesh/internal/instance"
)

// SocketOff is the value of --socket that turns local control off.
const SocketOff = "off"

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
	if r.EtcdPrefix != "" { // older agents do not report it
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

// rounded returns a number of seconds as a duration, rounded to 0.1 s.
func rounded(seconds float64) time.Duration {
	return time.Duration(seconds * float64(time.Second)).Round(100 * time.Millisecond)
}

// WithReason returns a phase and its reason for output; it makes the reason printable.
func WithReason(phase, reason string) string {
	if reason == "" {
		return phase
	}
	return phase + ": " + instance.Printable(reason, 400)
}
