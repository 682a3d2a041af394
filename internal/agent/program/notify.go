package program

import (
	"context"
	"fmt"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"

	"github.com/pdmesh/pdmesh/internal/agent"
	"github.com/pdmesh/pdmesh/internal/agent/control"
	"github.com/pdmesh/pdmesh/internal/observe/sdnotify"
)

// notifyReady reports to systemd that the agent runs, not that the engine has loaded or that etcd
// answers: a unit that waited for these would be killed by systemd's start timeout, and the engine
// with it.
func (s *service) notifyReady() { sdnotify.Notify(s.logFor("systemd"), daemon.SdNotifyReady) }

// statusPoll is the interval between updates of the text in systemctl status.
const statusPoll = time.Second

// watchdog feeds the watchdog of systemd until ctx ends.
func (s *service) watchdog(ctx context.Context) {
	sdnotify.Watchdog(ctx, "agent", s.checkAlive, s.logFor("systemd"))
}

// notifyStatus reports the state of the agent to systemd until ctx ends. The agent begins to drain when
// stopping is closed.
func (s *service) notifyStatus(ctx context.Context, stopping <-chan struct{}) {
	if !sdnotify.Enabled() {
		return
	}
	log := s.logFor("systemd")
	tick := time.NewTicker(statusPoll)
	defer tick.Stop()
	shown := ""
	for {
		r := s.report()
		if text := control.WithReason(r.Phase, r.Reason) + "; registration " + r.Registration.Phase; text != shown {
			shown = text
			sdnotify.Notify(log, sdnotify.Status(text))
		}
		select {
		case <-ctx.Done():
			return
		case <-stopping:
			stopping = nil
			sdnotify.Notify(log, daemon.SdNotifyStopping, sdnotify.ExtendTimeout(s.stopTime()))
		case <-tick.C:
		}
	}
}

// stopMargin is added to the two waits of an orderly stop.
const stopMargin = 20 * time.Second

// stopTime returns the time limit of an orderly stop.
func (s *service) stopTime() time.Duration {
	d := s.ShutdownDelay + s.DrainTimeout + stopMargin
	if s.Command != nil {
		d += s.StopTimeout
	}
	return d
}

// checkAlive returns an error if the agent's loop is stuck. A drain has its own limits. There is no loop
// between two starts of an engine, nor with --zmq-register.
func (s *service) checkAlive(context.Context) error {
	p := s.registration.Load()
	if p == nil {
		return nil
	}
	st := p.agent.Status()
	switch st.Phase {
	case agent.Draining, agent.Gone:
		return nil
	}
	// Three probes and pauses of maximum duration.
	limit := 3*(s.ProbeInterval+s.ProbeTimeout) + 3*agent.MaxBackoff
	if age := time.Since(st.Beat); !st.Beat.IsZero() && age > limit {
		return fmt.Errorf("no probe for %s", age.Round(time.Second))
	}
	return nil
}
