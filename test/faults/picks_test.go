package faults_test

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/pdmesh/pdmesh/internal/discovery/watch"
	"github.com/pdmesh/pdmesh/internal/health"
	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/internal/sched"
	"github.com/pdmesh/pdmesh/sim/testkit"
	"github.com/pdmesh/pdmesh/sim/testkit/etcdtest"
	"github.com/pdmesh/pdmesh/sim/testkit/members"
)

// Alive makes alive a prober of health.
func (alive) Alive(context.Context, *instance.Instance) error { return nil }

// picker combines the parts that pick instances, as in a proxy.
type picker struct {
	w *watch.Watcher
	s *sched.Scheduler
}

func newPicker(b *testing.B, cli *clientv3.Client) *picker {
	b.Helper()
	p := &picker{}
	p.w = watch.New(cli, watch.Options{
		Layout: members.Layout(b), Prober: alive{}, Prepare: func(s *instance.Snapshot) { p.s.Prepare(s) },
	})
	tracker := health.New(health.Options{Source: p.w, Prober: alive{}})
	b.Cleanup(tracker.Close)
	p.s = sched.New(sched.Options{
		Source: p.w, Health: tracker, Silent: tracker.Suspect,
		PairKey: members.PairKey,
	})
	members.Run(b, p.w.Run)
	return p
}

// pickUntil picks two instances each millisecond, which is the load of a thousand requests per second, until
// done returns true. It returns the durations of the picks.
func (p *picker) pickUntil(b *testing.B, done func() bool) (took []time.Duration) {
	b.Helper()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for !done() {
		<-tick.C
		for _, role := range instance.Roles() {
			start := time.Now()
			p.w.Fresh(b.Context(), time.Now())
			a, err := p.s.Pick(sched.Request{Role: role, Model: "Qwen/Qwen2.5-7B-Instruct"})
			d := time.Since(start)
			if err != nil {
				b.Fatalf("pick: %v", err)
			}
			a.Done()
			took = append(took, d)
		}
	}
	return took
}

// p99 sorts the durations.
func p99(took []time.Duration) time.Duration {
	slices.Sort(took)
	return took[len(took)*99/100]
}

// expiryRound lets n leases expire and compares the picks while etcd deletes their keys with those of
// the quiet time before.
func (p *picker) expiryRound(b *testing.B, cli *clientv3.Client, n int) (quiet, during []time.Duration) {
	b.Helper()
	const ttl, calm = 20, 4 * time.Second
	registerMany(b, cli, n, ttl)
	awaitCount(b, p.w, n)
	testkit.Eventually(b, soon, func() error { // the instances of the last round are registered again
		if s := p.w.Status(); s.Orphans > 0 {
			return fmt.Errorf("%d orphans", s.Orphans)
		}
		return nil
	})
	end := time.Now().Add(calm)
	quiet = p.pickUntil(b, func() bool { return time.Now().After(end) })
	if s := p.w.Status(); s.Orphans > 0 {
		b.Fatalf("leases of %d s began to expire in the quiet time, the machine is too slow: %+v", ttl, s)
	}
	testkit.Eventually(b, soon, func() error {
		if s := p.w.Status(); s.Orphans == 0 {
			return errNotYet
		}
		return nil
	})
	during = p.pickUntil(b, func() bool { return p.w.Status().Orphans == n })
	if got := count(p.w.Snapshot()); got != n {
		b.Errorf("%d instances are left of %d whose probes pass", got, n)
	}
	return quiet, during
}

// Quiet times and expiries alternate; the ratio is that of all picks.
func BenchmarkPickDuringExpiry10000(b *testing.B) {
	const n, rounds = 10000, 3
	for b.Loop() {
		etcd := etcdtest.Start(b)
		p, cli := newPicker(b, members.Dial(b, etcd.Endpoint())), etcd.Client(b)
		var quiet, during []time.Duration
		for range rounds {
			q, d := p.expiryRound(b, cli, n)
			b.Logf("p99 of %d picks in a quiet time %v, of %d picks during expiries %v", len(q), p99(q), len(d), p99(d))
			quiet, during = append(quiet, q...), append(during, d...)
		}
		ratio := float64(p99(during)) / float64(max(p99(quiet), 1))
		b.ReportMetric(float64(p99(quiet).Nanoseconds()), "ns-p99-quiet")
		b.ReportMetric(float64(p99(during).Nanoseconds()), "ns-p99-during")
		b.ReportMetric(ratio, "ratio-p99")
		what := fmt.Sprintf("%d expiries, %d rounds beside quiet times: p99 of a pick in percent of quiet", n, rounds)
		counted(b, 17, what, int64(100*ratio), 110)
	}
}
