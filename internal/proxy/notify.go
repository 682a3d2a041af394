package proxy

import (
	"context"
	"errors"
	"net/http"
	"os"
	"time"

	"github.com/pdmesh/pdmesh/internal/sdnotify"
)

// readyPoll is how often a proxy that is not ready yet is looked at.
const readyPoll = 200 * time.Millisecond

// stopMargin is for what an orderly end takes beside --shutdown-timeout.
const stopMargin = 15 * time.Second

// tellSystemd says READY when /readyz would say 200, feeds the watchdog while
// the proxy is sane, and says STOPPING when stopping ends. It returns with ctx.
func (p *app) tellSystemd(ctx context.Context, stopping <-chan struct{}) {
	log := p.log.WithField("component", "systemd")
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
		sd.Watch(ctx, p.sane, func(err error) {
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
			if err := p.ready(); err == nil {
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
			send(sdnotify.Stopping, sdnotify.Status("finishing running requests"), sdnotify.ExtendTimeout(p.cfg.ShutdownTimeout+stopMargin))
		case <-tick.C:
		}
	}
}

var errStuck = errors.New("the proxy's parts do not answer")

// sane goes once through what every request needs: the router, the snapshot,
// the locks of watcher and scheduler. It is not asked over the network: a proxy
// that is merely busy must not be restarted.
func (p *app) sane(ctx context.Context) error {
	done := make(chan int, 1)
	go func() { // ends at once, or never where the proxy hangs; then it is killed
		w := &statusOnly{header: http.Header{}, code: http.StatusOK}
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, "/livez", nil)
		if err != nil {
			return
		}
		p.router.ServeHTTP(w, req)
		_ = p.watcher.Status()
		for _, in := range p.watcher.Snapshot().All() {
			_ = p.tracker.Available(in.Key)
			_ = p.sched.InFlight(in.Key)
		}
		done <- w.code
	}()
	select {
	case code := <-done:
		if code == http.StatusOK {
			return nil
		}
	case <-ctx.Done():
	}
	return errStuck
}

// statusOnly is an answer of which nothing but the status is wanted.
type statusOnly struct {
	header http.Header
	code   int
}

// Header implements http.ResponseWriter.
func (w *statusOnly) Header() http.Header { return w.header }

// Write implements http.ResponseWriter.
func (w *statusOnly) Write(p []byte) (int, error) { return len(p), nil }

// WriteHeader implements http.ResponseWriter.
func (w *statusOnly) WriteHeader(code int) { w.code = code }
