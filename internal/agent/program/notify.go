package program

import (
	"context"
	"fmt"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"
	"github.com/sirupsen/logrus"

	"github.com/pdmesh/pdmesh/internal/agent"
	"github.com/pdmesh/pdmesh/internal/agent/control"
	"github.com/pdmesh/pdmesh/internal/agent/setup"
	"github.com/pdmesh/pdmesh/internal/cli/background"
	"github.com/pdmesh/pdmesh/internal/observe/logging"
	"github.com/pdmesh/pdmesh/internal/observe/sdnotify"
)

// notifier reports the agent's state to systemd. READY means that the agent runs,
// not that the engine has loaded or that etcd answers: a unit that waited for
// these would be killed by systemd's start timeout, and the engine with it.
type notifier struct {
	c   setup.Config
	ctl *control.Control
	log logrus.FieldLogger
}

func (n *notifier) ready() { sdnotify.Notify(n.log, daemon.SdNotifyReady) }

// statusPoll is the interval between updates of the text in systemctl status.
const statusPoll = time.Second

// start runs the notifications in the background until stop is called. The agent begins
// to drain when ctx ends.
func (n *notifier) start(ctx context.Context) (stop func()) {
	if !sdnotify.Enabled() {
		return func() {}
	}
	return background.Start(ctx,
		func(bg context.Context) { sdnotify.Watchdog(bg, "agent", n.sane, n.log) },
		func(bg context.Context) { n.status(bg, ctx.Done()) },
	)
}

// notifyBridge reports to systemd that a bridge runs, and that it is alive, until stop is called.
func (s *service) notifyBridge(ctx context.Context) (stop func()) {
	if !sdnotify.Enabled() {
		return func() {}
	}
	n := notifier{log: s.log.WithField(logging.FieldComponent, "systemd")}
	n.ready()
	return background.Start(ctx, func(bg context.Context) {
		sdnotify.Watchdog(bg, "agent", func(context.Context) error { return nil }, n.log)
	})
}

func (n *notifier) status(ctx context.Context, stopping <-chan struct{}) {
	tick := time.NewTicker(statusPoll)
	defer tick.Stop()
	shown := ""
	for {
		r := n.ctl.Report()
		if text := control.WithReason(r.Phase, r.Reason) + "; registration " + r.Registration.Phase; text != shown {
			shown = text
			sdnotify.Notify(n.log, sdnotify.Status(text))
		}
		select {
		case <-ctx.Done():
			return
		case <-stopping:
			stopping = nil
			sdnotify.Notify(n.log, daemon.SdNotifyStopping, sdnotify.ExtendTimeout(n.stopTime()))
		case <-tick.C:
		}
	}
}

// stopMargin is added to the two waits of an orderly stop.
const stopMargin = 20 * time.Second

// stopTime returns the time limit of an orderly stop.
func (n *notifier) stopTime() time.Duration {
	d := n.c.ShutdownDelay + n.c.DrainTimeout + stopMargin
	if n.c.Command != nil {
		d += n.c.StopTimeout
	}
	return d
}

// sane returns an error if the agent's loop is stuck. A drain has limits of its own, and
// there is no loop between two starts of an engine.
func (n *notifier) sane(context.Context) error {
	p := n.ctl.Life.Load()
	if p == nil {
		return nil
	}
	st := p.Agent.Status()
	switch st.Phase {
	case agent.Draining, agent.Gone:
		return nil
	}
	// Time for a few rounds that take as long as they may.
	limit := 3*(n.c.ProbeInterval+n.c.ProbeTimeout) + 3*agent.MaxBackoff
	if age := time.Since(st.Beat); !st.Beat.IsZero() && age > limit {
		return fmt.Errorf("no probe for %s", age.Round(time.Second))
	}
	return nil
}
