package proxy

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cenkalti/backoff/v5"
	"github.com/sirupsen/logrus"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/pdmesh/pdmesh/internal/accesslog"
	"github.com/pdmesh/pdmesh/internal/config"
	"github.com/pdmesh/pdmesh/internal/dashboard"
	"github.com/pdmesh/pdmesh/internal/discovery/lease"
	"github.com/pdmesh/pdmesh/internal/discovery/schema"
	"github.com/pdmesh/pdmesh/internal/discovery/watch"
	"github.com/pdmesh/pdmesh/internal/forward"
	"github.com/pdmesh/pdmesh/internal/forward/flow"
	"github.com/pdmesh/pdmesh/internal/health"
	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/internal/logging"
	"github.com/pdmesh/pdmesh/internal/metrics"
	"github.com/pdmesh/pdmesh/internal/notice"
	"github.com/pdmesh/pdmesh/internal/sched"
	"github.com/pdmesh/pdmesh/internal/version"
)

// background starts everything that follows etcd; it ends with ctx.
func (p *app) background(ctx context.Context, work *sync.WaitGroup) {
	work.Go(func() { p.logEnd("watcher", p.watcher.Run(ctx)) })
	work.Go(func() { p.logEnd("presence", p.presence.Run(ctx)) })
	work.Go(func() { p.sched.Legs.Run(ctx) })
	work.Go(func() { p.load.Scrape(ctx) })
	work.Go(func() { p.load.Weigh(ctx) })
	if p.load.Others != nil {
		work.Go(func() { p.logEnd("watch of the load digests", p.load.Others.Run(ctx)) })
	}
	if p.kv != nil {
		work.Go(func() { p.kv.Run(ctx) })
	}
	work.Go(func() { p.forgetOldLives(ctx) })
	work.Go(func() { p.warn(ctx) })
	work.Go(func() { followSignals(ctx, p.level) })
	work.Go(func() { p.begin(ctx) })
	work.Go(func() { p.writeOnce(ctx) })
	work.Go(func() { p.flags.Watch(ctx, p.log) })
	work.Go(func() { p.keys.Watch(ctx) })
	if p.access != nil {
		work.Go(func() { p.access.Run(ctx) })
	}
	if p.board != nil {
		work.Go(func() { p.board.Run(ctx) })
	}
}

// forgetOldLives drops pooled connections to engines that have begun a new
// life at the same address.
func (p *app) forgetOldLives(ctx context.Context) {
	var last *instance.Snapshot
	for {
		snap := p.watcher.Snapshot()
		instance.Changes(last, snap, func(was, is *instance.Instance) {
			if was != nil && is != nil && was.View != instance.Pending && was.Incarnation() != is.Incarnation() {
				p.upstream.Forget(is.Address)
			}
		})
		last = snap
		select {
		case <-ctx.Done():
			return
		case <-snap.Changed():
		}
	}
}

func (p *app) logEnd(what string, err error) {
	if err != nil && !errors.Is(err, context.Canceled) {
		p.log.WithError(err).Errorf("%s ended", what)
	}
}

// writeOnce writes what this start has to say to etcd, as soon as etcd takes it.
func (p *app) writeOnce(ctx context.Context) {
	b := backoff.NewExponentialBackOff()
	b.MaxInterval = 3 * time.Second
	for {
		err := p.store.EnsureSchema(ctx)
		if errors.Is(err, schema.ErrNewer) || errors.Is(err, schema.ErrForeign) {
			p.log.WithError(err).Error("serving, but nothing can be written")
			return
		}
		if err == nil {
			if err = p.flags.Sync(ctx, p.store.Instances, p.log); err == nil {
				return
			}
		}
		p.log.WithError(err).Debug("etcd does not take writes yet")
		timer := time.NewTimer(b.NextBackOff())
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-timer.C:
		}
	}
}

// ready tells what /readyz waits for, nil for nothing.
func (p *app) ready() error {
	if p.stopping.Load() {
		return errors.New("the proxy is stopping")
	}
	select {
	case <-p.watcher.Ready():
	default:
		msg := "the membership has not been read from etcd yet"
		if last := p.watcher.Status().LastError; last != "" {
			msg += ": " + last
		}
		return errors.New(msg)
	}
	return p.flags.Ready()
}

// beginLimit is how long the first requests wait for an instance that answers.
const beginLimit = 5 * time.Second

// begin lets the first requests be picked for once somebody of each known role
// has answered. A proxy takes connections before it has read the membership and
// asked the instances, which takes milliseconds; clients that came from a proxy
// which was restarted would be refused in that time, although nothing is wrong.
func (p *app) begin(ctx context.Context) {
	defer close(p.begun)
	timer := time.NewTimer(beginLimit)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return
	case <-timer.C:
		return
	case <-p.watcher.Ready():
	}
	for {
		snap := p.watcher.Snapshot()
		if answered(snap, p.flags.Keys) {
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
			return
		case <-snap.Changed():
		}
	}
}

// answered tells that no role has instances of which none can be used yet. Those
// of the command line count before they have been written to etcd.
func answered(snap *instance.Snapshot, flags []instance.Key) bool {
	known, usable := map[instance.Role]bool{}, map[instance.Role]bool{}
	for _, in := range snap.All() {
		if in.View != instance.Pending && in.View != instance.Rejected && in.View != instance.Elsewhere && in.Intent == "" && in.Weight() > 0 {
			known[in.Role] = true
			usable[in.Role] = usable[in.Role] || in.Usable() || in.Slow()
		}
	}
	for _, k := range flags {
		if _, there := snap.Lookup(k); !there {
			known[k.Role] = true
		}
	}
	for role := range known {
		if !usable[role] {
			return false
		}
	}
	return true
}

// freshPicker picks over a membership that has been read, and not before a
// suspension of this process.
type freshPicker struct {
	*sched.Scheduler
	watcher *watch.Watcher
	begun   <-chan struct{}
	ready   *atomic.Bool // begun is closed
}

// Pick implements forward.Picker. It waits a second at most, and beginLimit at
// the start of the process, which is why no context reaches it.
func (p freshPicker) Pick(r sched.Request) (*sched.Assignment, error) {
	if !p.ready.Load() { // a look at a closed channel takes its lock
		<-p.begun
		p.ready.Store(true)
	}
	p.watcher.Fresh(context.Background(), time.Now())
	return p.Scheduler.Pick(r)
}

// opinion shows the tracker's ejections to the routes.
type opinion struct{ *health.Tracker }

// Why implements httpapi.Opinion.
func (o opinion) Why(k instance.Key) string {
	if e, ok := o.Ejected(k); ok {
		return e.Reason
	}
	if d := o.SilentFor(k); d >= tellSilence {
		return fmt.Sprintf("no sign of life for %s, and nobody else could take its requests: they wait within their own limits", d.Round(time.Second))
	}
	return ""
}

// tellSilence is from when on /status speaks of the silence of an instance that is in.
const tellSilence = 3 * time.Second

// recorder sends every finished request to the counters and the access log.
type recorder struct {
	*metrics.Metrics
	noticed *notice.Counts
	access  *accesslog.Log          // nil: off
	board   func() *dashboard.Board // nil: off
}

// newAccessLog gives nil when there is to be none: access lines are information.
func newAccessLog(cfg *config.Proxy, log *logrus.Logger) *accesslog.Log {
	if !cfg.AccessLog || !log.IsLevelEnabled(logrus.InfoLevel) {
		return nil
	}
	return accesslog.New(accesslog.Options{
		Out: log.Out, JSON: strings.EqualFold(cfg.LogFormat, logging.FormatJSON), Log: log.WithField("component", "accesslog"),
	})
}

// Done implements forward.Recorder.
func (r recorder) Done(e *forward.Entry) {
	r.Metrics.Done(e)
	r.noticed.Done(e)
	if r.access != nil {
		r.access.Write(e)
	}
	if b := r.board(); b != nil {
		b.Done(sample(e))
	}
}

// Handed implements forward.Recorder.
func (r recorder) Handed(in *instance.Instance, something bool) {
	r.Metrics.Handed(in, something)
	r.noticed.Handed(in, something)
}

func newPresence(cli *clientv3.Client, l schema.Layout, p *app, address string) *lease.Presence {
	return lease.NewPresence(cli, lease.PresenceOptions{
		Layout: l, ID: p.id, Address: address, Version: version.String(), Log: p.log.WithField("component", "presence"),
		Applied: func() int64 { return p.watcher.Status().Applied }, Connector: p.cfg.Connector,
		Unverified: func() map[string]string { return unverified(p.watcher.Snapshot()) },
		Notices:    p.notices, Load: p.load.Source(), LoadInterval: p.cfg.LoadInterval,
	})
}

// disaggregate is who decides about prefill and decode, nil for nobody.
func disaggregate(cfg *config.Proxy) *flow.Disaggregate {
	if cfg.Disaggregate == config.DisaggregateAlways {
		return nil
	}
	return &flow.Disaggregate{Never: cfg.Disaggregate == config.DisaggregateNever}
}
