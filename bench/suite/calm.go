package suite

import (
	"context"
	"time"

	"github.com/pdmesh/pdmesh/bench/report"
	"github.com/pdmesh/pdmesh/bench/target"
)

// What else runs on the same host makes memory and system calls slower for minutes
// at a time, for everybody alike, and no program sees it coming. So a cell begins
// when a probe finds the machine about as good as it has been: the floor, which is
// none of the targets' doing, under the smallest workload. So does each round of
// those that take turns. Once begun everything counts.

const (
	probeLength = 300 * time.Millisecond
	probePause  = time.Second
	// calibration is how many probes go first, to learn how good the machine can be
	// if that is not known.
	calibration = 10
	// tolerated is how much more than in the best probe a request may take.
	tolerated = 1.15
)

// calm waits for moments in which the machine is as good as it can be.
type calm struct {
	probe func(ctx context.Context) (micros float64, err error)
	pause func(ctx context.Context)
	left  time.Duration // of the patience
	found *report.Calm
}

// newCalm starts the probe; close is due in any case.
func newCalm(ctx context.Context, lab *target.Lab, o *Options, found *report.Calm) (c *calm, closing func(), err error) {
	small, err := Choose([]string{"small"})
	if err != nil {
		return nil, func() {}, err
	}
	p := &cell{o: o, lab: lab, w: small[0], spec: target.Spec{Name: "floor", Kind: target.Floor}}
	if err := p.setUp(ctx); err != nil {
		return nil, p.close, err
	}
	if err := p.begin(); err != nil {
		return nil, p.close, err
	}
	*found = report.Calm{Patience: o.Patience.Seconds(), Tolerated: tolerated, Best: o.Quiet}
	c = &calm{left: o.Patience, found: found, pause: func(ctx context.Context) { pause(ctx, probePause) }}
	c.probe = func(ctx context.Context) (float64, error) {
		cpu, right := p.out.CPU, p.tally.Right.Load()
		err := p.part(ctx, probeLength, partWarmup)
		return 1e6 * (p.out.CPU - cpu) / float64(max(1, p.tally.Right.Load()-right)), err
	}
	err = awakeWhile(o.Awake, func() error {
		for range calibration {
			if _, err := c.look(ctx); err != nil {
				return err
			}
			c.pause(ctx)
		}
		return nil
	})
	return c, p.close, err
}

// look probes once.
func (c *calm) look(ctx context.Context) (float64, error) {
	now, err := c.probe(ctx)
	if err == nil && (c.found.Best == 0 || now < c.found.Best) {
		c.found.Best = now
	}
	return now, err
}

// wait comes back when the machine is good enough, or all patience has gone; at once
// if c is nil.
func (c *calm) wait(ctx context.Context) {
	for start := time.Now(); c != nil; {
		now, err := c.look(ctx)
		passed := time.Since(start)
		good := err == nil && now <= tolerated*c.found.Best
		if good || err != nil || passed >= c.left || ctx.Err() != nil {
			c.left -= passed
			c.found.Waited += passed.Seconds()
			if err == nil {
				c.found.Begun = append(c.found.Begun, now)
			} else {
				c.found.Problem = err.Error()
			}
			if !good {
				c.found.Anyway++
			}
			return
		}
		c.pause(ctx)
	}
}

// sensitive reports whether a step has figures that are judged and depend on how fast
// the machine is at the moment.
func (s *step) sensitive() bool {
	for _, p := range s.pairs {
		if p.spec.Kind == target.Mesh || p.spec.Kind == target.TwoHop {
			return !p.workload.Hold
		}
	}
	return false
}
