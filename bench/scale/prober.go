package scale

import (
	"cmp"
	"context"
	"fmt"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/pdmesh/pdmesh/internal/cli/sleep"
	"github.com/pdmesh/pdmesh/internal/discovery/schema"
	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/sim/fakevllm"
	"github.com/pdmesh/pdmesh/sim/fleet"
	"github.com/pdmesh/pdmesh/sim/loadgen"
)

// probeModel is served by two decode engines, one of which is draining.
const probeModel = "scale/probe"

// prober measures the time from a put until the pickers of all proxies use it. Each second it swaps the
// states of the two instances in one transaction, and sends requests to each proxy until the instance that
// has become ready answers.
type prober struct {
	d       *driver
	cli     *clientv3.Client
	client  *loadgen.Client
	proxies []*fleet.Proxy
	records [2]instance.Record
	lease   clientv3.LeaseID
	turn    int // index of the ready instance
	cancel  context.CancelFunc
}

func startProber(ctx context.Context, d *driver, client *loadgen.Client, proxies []*fleet.Proxy) (_ *prober, err error) {
	p := &prober{d: d, cli: d.clients[0], client: client, proxies: proxies}
	for i := range p.records {
		if p.records[i], err = d.engine(ctx, fakevllm.RoleDecode, probeModel); err != nil {
			return nil, err
		}
	}
	granted, err := p.cli.Grant(ctx, 60)
	if err != nil {
		return nil, fmt.Errorf("lease of the probes: %w", err)
	}
	p.lease = granted.ID
	ctx, p.cancel = context.WithCancel(ctx)
	renewals, err := p.cli.KeepAlive(ctx, p.lease)
	if err != nil {
		p.cancel()
		return nil, fmt.Errorf("lease of the probes: %w", err)
	}
	d.running.Go(func() {
		for range renewals {
		}
	})
	return p, p.swap(ctx)
}

func (p *prober) close() { p.cancel() }

// swap makes the other instance ready, and the ready one draining. The end of ctx does not interrupt it.
func (p *prober) swap(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), arrives)
	defer cancel()
	p.turn = 1 - p.turn
	var puts []clientv3.Op
	for i, rec := range p.records {
		rec.State = instance.Draining
		if i == p.turn {
			rec.State = instance.Ready
		}
		value, err := schema.EncodeRecord(rec)
		if err != nil {
			return err
		}
		key := p.d.layout.Instance(instance.Key{Role: rec.Role, Address: rec.Address})
		puts = append(puts, clientv3.OpPut(key, string(value), clientv3.WithLease(p.lease)))
	}
	if _, err := p.cli.Txn(ctx).Then(puts...).Commit(); err != nil {
		return fmt.Errorf("swap the probed instances: %w", err)
	}
	return nil
}

// run probes until ctx ends, and records a time for each proxy. It returns the number of lost responses and
// the first error.
func (p *prober) run(ctx context.Context, seen *loadgen.Histogram) (lost int64, first error) {
	var mu sync.Mutex // guards the results
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return lost, first
		case <-tick.C:
		}
		began := time.Now()
		err := p.swap(ctx)
		if p.d.note(err); err != nil {
			continue
		}
		var all sync.WaitGroup
		for _, proxy := range p.proxies {
			all.Go(func() {
				for ctx.Err() == nil {
					got := complete(ctx, p.client, proxy.URL(), probeModel, "probe", 1)
					if got.Err != nil && ctx.Err() == nil {
						mu.Lock()
						defer mu.Unlock()
						lost++
						first = cmp.Or(first, fmt.Errorf("probe of %s: %w", proxy.Name(), got.Err))
						return
					}
					if got.Header.Get("X-Pd-Decode") == p.records[p.turn].Address {
						seen.Record(time.Since(began))
						return
					}
					sleep.For(ctx, time.Millisecond)
				}
			})
		}
		all.Wait()
	}
}
