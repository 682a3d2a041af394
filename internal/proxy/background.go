package proxy

import (
	"context"
	"errors"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"github.com/cenkalti/backoff/v5"

	"github.com/pdmesh/pdmesh/internal/cli/sleep"
	"github.com/pdmesh/pdmesh/internal/discovery/schema"
	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/internal/observe/logging"
)

// background starts the background work, which ends with ctx.
func (p *app) background(ctx context.Context, work *sync.WaitGroup) {
	for _, run := range []func(context.Context){
		p.watcher.Run, p.etcd.Follow, p.presence.Run, p.sched.Legs.Run, p.models.Run, p.queues.Run, p.ratio.Run,
		p.load.Scrape, p.load.FollowOthers, p.tracker.ProbeStatic, p.keys.Watch, p.admins.Watch,
		p.followMembership, p.followLimits, p.awaitFirstAnswers, p.writeStart,
	} {
		work.Go(func() { run(ctx) })
	}
	work.Go(func() { followSignals(ctx, p.level) })
	work.Go(func() { p.flags.Watch(ctx, p.log) })
	if p.load.Others != nil {
		work.Go(func() { p.load.Others.Run(ctx) })
	}
	if p.kv != nil {
		work.Go(func() { p.kv.Run(ctx) })
	}
	if p.board != nil {
		work.Go(func() { p.board.Run(ctx) })
	}
}

// followMembership drops pooled connections to engines that have a new incarnation at the same
// address, logs warnings about instances, and updates the metrics of the membership.
func (p *app) followMembership(ctx context.Context) {
	instance.Follow(ctx, p.watcher.Snapshot, func(last, snap *instance.Snapshot) {
		p.counters.Follow(last, snap)
		instance.Changes(last, snap, func(was, is *instance.Instance) {
			if was != nil && is != nil && was.View != instance.Pending && was.Incarnation() != is.Incarnation() {
				p.upstream.Forget(is.Address)
			}
			p.logWarning(was, is)
		})
		p.queues.Wake()
	})
}

// writeStart writes the schema and the instances of the command line to etcd, as soon as etcd accepts
// writes. The proxy uses these instances before that, too (watch.Options.Local).
func (p *app) writeStart(ctx context.Context) {
	failures := 0
	b := backoff.NewExponentialBackOff()
	b.MaxInterval = 3 * time.Second
	for {
		err := p.store.EnsureSchema(ctx)
		if errors.Is(err, schema.ErrNewer) || errors.Is(err, schema.ErrForeign) {
			p.log.WithError(err).Error("serving, but cannot write to etcd")
			return
		}
		if err == nil {
			if err = p.flags.Sync(ctx, p.store.Instances, p.log); err == nil {
				return
			}
		}
		if failures++; failures == warnWrites && len(p.flags.Keys) > 0 {
			p.log.WithError(err).Warn("instances of the command line are used, but not yet in etcd: it accepts no writes")
		} else {
			p.log.WithError(err).Debug("etcd does not accept writes yet")
		}
		if !sleep.For(ctx, b.NextBackOff()) {
			return
		}
	}
}

// warnWrites is the number of failed writes at the start after which a warning is logged.
const warnWrites = 3

// ready returns nil from the end of the start until the proxy stops, otherwise the reason. systemd waits
// for it; /readyz also requires an instance that can serve.
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

// followSignals changes the log level: SIGUSR1 makes it one step more verbose, SIGUSR2 restores the
// initial level.
func followSignals(ctx context.Context, level *logging.Level) {
	came := make(chan os.Signal, 8)
	signal.Notify(came, syscall.SIGUSR1, syscall.SIGUSR2)
	defer signal.Stop(came)
	for {
		select {
		case <-ctx.Done():
			return
		case s := <-came:
			if s == syscall.SIGUSR1 {
				level.More()
			} else {
				level.Reset()
			}
		}
	}
}
