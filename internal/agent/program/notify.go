package program

import (
	"context"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/pdmesh/pdmesh/internal/agent"
	"github.com/pdmesh/pdmesh/internal/agent/control"
	"github.com/pdmesh/pdmesh/internal/agent/setup"
	"github.com/pdmesh/pdmesh/internal/logging"
	"github.com/pdmesh/pdmesh/internal/sdnotify"
)

// notifier tells systemd how the agent is. READY means that the agent does its
// work, not that the engine has loaded or that etcd answers: a unit that waited
// for these would be killed by systemd's start timeout, and the engine with it.
type notifier struct {
	sd  *sdnotify.Notifier
	c   setup.Config
	ctl *control.Control
	log logrus.FieldLogger
}

func newNotifier(c setup.Config, ctl *control.Control, log logrus.FieldLogger) *notifier {
	n := &notifier{c: c, ctl: ctl, log: log.WithField(logging.FieldComponent, "systemd")}
	var err error
	if n.sd, err = sdnotify.New(os.LookupEnv, os.Getpid()); err != nil {
		n.log.WithError(err).Warn("systemd will hear less of this agent")
	}
	return n
}

func (n *notifier) send(states ...string) {
	if err := n.sd.Send(states...); err != nil {
		n.log.WithError(err).Debug("systemd was not told")
	}
}

func (n *notifier) ready() { n.send(sdnotify.Ready) }

// statusPoll is how often what systemctl status shows is brought up to date.
const statusPoll = time.Second

// start does what is due in the background; stop ends it and waits. The end of
// ctx is when the agent begins to drain.
func (n *notifier) start(ctx context.Context) (stop func()) {
	if !n.sd.Enabled() {
		return func() {}
	}
	bg, cancel := context.WithCancel(context.WithoutCancel(ctx))
	var work sync.WaitGroup
	work.Go(func() {
		n.sd.Watch(bg, n.sane, func(err error) {
			if err != nil {
				n.log.WithError(err).Error("the agent is stuck; its watchdog is not fed")
			}
		})
	})
	work.Go(func() { n.status(bg, ctx.Done()) })
	return func() { cancel(); work.Wait() }
}

func (n *notifier) status(ctx context.Context, stopping <-chan struct{}) {
	tick := time.NewTicker(statusPoll)
	defer tick.Stop()
	shown := ""
	for {
		r := n.ctl.Report()
		if text := control.WithReason(r.Phase, r.Reason) + "; registration " + r.Registration.Phase; text != shown {
			shown = text
			n.send(sdnotify.Status(text))
		}
		select {
		case <-ctx.Done():
			return
		case <-stopping:
			stopping = nil
			n.send(sdnotify.Stopping, sdnotify.ExtendTimeout(n.stopTime()))
		case <-tick.C:
		}
	}
}

// stopMargin is for what an orderly end takes beside its two waits.
const stopMargin = 20 * time.Second

// stopTime is how long an orderly end may take.
func (n *notifier) stopTime() time.Duration {
	d := n.c.ShutdownDelay + n.c.DrainTimeout + stopMargin
	if n.c.Command != nil {
		d += n.c.StopTimeout
	}
	return d
}

// sane tells whether the agent's loop still turns. A drain has limits of its
// own, and between two lives of an engine there is no loop.
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
