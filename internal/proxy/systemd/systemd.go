// Package systemd reports a proxy's state to systemd.
package systemd

import (
	"context"
	"sync"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"
	"github.com/sirupsen/logrus"

	"github.com/pdmesh/pdmesh/internal/observe/sdnotify"
)

// readyPoll is the interval between checks of a proxy that is not ready yet.
const readyPoll = 200 * time.Millisecond

// stopMargin is the time beyond ShutdownTimeout that systemd allows for the stop.
const stopMargin = 15 * time.Second

// Proxy reports the state of a proxy. All fields must be set.
type Proxy struct {
	Ready           func() error // returns nil once the proxy serves
	CheckAlive      func(ctx context.Context) error
	ShutdownTimeout time.Duration
	Log             logrus.FieldLogger
}

// Notify sends READY once Ready returns nil, feeds the watchdog while the proxy is sane, and sends
// STOPPING when stopping is closed. It returns when ctx ends.
func (p Proxy) Notify(ctx context.Context, stopping <-chan struct{}) {
	log := p.Log.WithField("component", "systemd")
	if !sdnotify.Enabled() {
		return
	}
	var watchdog sync.WaitGroup
	watchdog.Go(func() { sdnotify.Watchdog(ctx, "proxy", p.CheckAlive, log) })
	defer watchdog.Wait()
	tick := time.NewTicker(readyPoll)
	defer tick.Stop()
	ready, waiting := false, ""
	for {
		if !ready {
			if err := p.Ready(); err == nil {
				ready = true
				sdnotify.Notify(log, daemon.SdNotifyReady, sdnotify.Status("ready"))
			} else if text := "waiting: " + err.Error(); text != waiting {
				waiting = text
				sdnotify.Notify(log, sdnotify.Status(text))
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-stopping:
			ready, stopping = true, nil
			sdnotify.Notify(log, daemon.SdNotifyStopping, sdnotify.Status("finishing running requests"), sdnotify.ExtendTimeout(p.ShutdownTimeout+stopMargin))
		case <-tick.C:
		}
	}
}
