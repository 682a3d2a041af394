package health

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/pdmesh/pdmesh/internal/cli/sleep"
	"github.com/pdmesh/pdmesh/internal/instance"
)

const (
	// staticInterval is the time between two probes of an instance without an agent, as
	// long as that of agents. Each instance beyond 400 adds staticSpread, so that all
	// together get at most 200 probes a second.
	staticInterval = 2 * time.Second
	staticSpread   = 5 * time.Millisecond
	// staticProbes bounds the probes under way.
	staticProbes = 8
)

// ProbeStatic probes the instances that no agent probes until ctx ends, so that a dead one is
// known before a request fails there. One failed probe makes the instance suspect; Suspect
// then decides as for an instance that keeps requests waiting.
func (t *Tracker) ProbeStatic(ctx context.Context) {
	var work sync.WaitGroup
	defer work.Wait()
	slots := make(chan struct{}, staticProbes)
	for {
		list := withoutAgent(t.opts.Source.Snapshot())
		interval := max(staticInterval, time.Duration(len(list))*staticSpread)
		next := time.Now().Add(interval/2 + rand.N(interval))
		for _, in := range list {
			if !t.Available(in.Key) {
				continue // its recovery probes it
			}
			select {
			case <-ctx.Done():
				return
			case slots <- struct{}{}:
			}
			work.Go(func() {
				defer func() { <-slots }()
				if t.probe(in) != nil && ctx.Err() == nil {
					t.Suspect(in)
				}
			})
		}
		if !sleep.Until(ctx, next) {
			return
		}
	}
}

// withoutAgent returns the verified instances whose engines no agent probes, each engine once.
func withoutAgent(snap *instance.Snapshot) (list []*instance.Instance) {
	seen := map[string]bool{}
	for _, in := range snap.All() {
		if seen[in.Address] || in.Maintained() || in.Record.State != instance.Ready || !in.Verified ||
			in.View != "" || in.Intent == instance.Removed {
			continue
		}
		seen[in.Address] = true
		list = append(list, in)
	}
	return list
}

// probe probes an instance; nil means that it has answered.
func (t *Tracker) probe(in *instance.Instance) error {
	ctx, cancel := context.WithTimeout(t.ctx, t.opts.ProbeTimeout)
	defer cancel()
	err := t.opts.Prober.Alive(ctx, in)
	if err != nil && errors.Is(ctx.Err(), context.DeadlineExceeded) && !errors.Is(err, ErrNotSent) {
		return fmt.Errorf("%w within %s", ErrNoAnswer, t.opts.ProbeTimeout)
	}
	return err
}
