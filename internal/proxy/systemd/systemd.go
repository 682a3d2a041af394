// Package systemd tells systemd how a proxy is.
package systemd

import (
	"context"
	"os"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/pdmesh/pdmesh/internal/sdnotify"
)

// readyPoll is how often a proxy that is not ready yet is looked at.
const readyPoll = 200 * time.Millisecond

// stopMargin is for what an orderly end takes beside --shutdown-timeout.
const stopMargin = 15 * time.Second

// Proxy is what systemd hears of.
type Proxy struct {
	Ready           func() error // as /readyz
	Sane            func(ctx context.Context) error
	ShutdownTimeout time.Duration
	Log             logrus.FieldLogger
}

// Tell says READY when /readyz would say 200, feeds the watchdog while
// the proxy is sane, and says STOPPING when stopping ends. It returns with ctx.
func (p Proxy) Tell(ctx context.Context, stopping <-chan struct{}) {
	log := p.Log.WithField("component", "systemd")
	sd, err := sdnotify.New(os.LookupEnv, os.Getpid())
	if err != nil {
		log.WithError(err).Warn("systemd will hear less of this proxy")
	}
	if !sd.Enabled() {
		return
	}
	fed := make(chan struct{})
	go func() {
		defer close(fed)
		sd.Watch(ctx, p.Sane, func(err error) {
			if err != nil {
				log.WithError(err).Error("the proxy is stuck; its watchdog is not fed")
			}
		})
	}()
	defer func() { <-fed }()
	send := func(states ...string) {
		if err := sd.Send(states...); err != nil {
			log.WithError(err).Debug("systemd was not told")
		}
	}
	tick := time.NewTicker(readyPoll)
	defer tick.Stop()
	ready, waiting := false, ""
	for {
		if !ready {
			if err := p.Ready(); err == nil {
				ready = true
				send(sdnotify.Ready, sdnotify.Status("ready"))
			} else if text := "waiting: " + err.Error(); text != waiting {
				waiting = text
				send(sdnotify.Status(text))
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-stopping:
			ready, stopping = true, nil
			send(sdnotify.Stopping, sdnotify.Status("finishing running requests"), sdnotify.ExtendTimeout(p.ShutdownTimeout+stopMargin))
		case <-tick.C:
		}
	}
}
