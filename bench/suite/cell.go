package suite

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/pdmesh/pdmesh/bench/engine"
	"github.com/pdmesh/pdmesh/bench/load"
	"github.com/pdmesh/pdmesh/bench/machine"
	"github.com/pdmesh/pdmesh/bench/report"
	"github.com/pdmesh/pdmesh/bench/target"
	"github.com/pdmesh/pdmesh/internal/cli/sleep"
	"github.com/pdmesh/pdmesh/sim/fleet"
)

// cell is one target under one workload, with its engines.
type cell struct {
	o      *Options
	lab    *target.Lab
	etcd   *target.Etcd
	w      Workload
	spec   target.Spec
	prefix string // of the keys in etcd

	engine  *engine.Engine // one for all instances
	plan    load.Plan
	running *target.Running
	pids    []int
	tally   load.Tally // of all measurements
	rss     []int64
	out     report.Cell
	err     error // the reason if there are no figures
}

// connector is the KV transfer of all instances.
const connector = "nixl"

// setUp starts engines and target, and sends the first requests. close must also be called
// after an error.
func (c *cell) setUp(ctx context.Context) error {
	if _, err := c.lab.Locate(c.spec); err != nil {
		return err
	}
	addrs, err := addresses(max(c.w.Instances, 4))
	if err != nil {
		return err
	}
	if c.engine, err = engine.Start(ctx, addrs, c.w.ITL); err != nil {
		return err
	}
	half := len(addrs) / 2
	site := target.Site{Prefill: addrs[:half], Decode: addrs[half:], Connector: connector, Prefix: c.prefix}
	if c.spec.Kind == target.Mesh {
		site.Etcd = c.etcd.Endpoint
		if err := c.etcd.Register(ctx, c.prefix, connector, site.Prefill, site.Decode); err != nil {
			return err
		}
	}
	if c.running, err = c.lab.Start(ctx, c.spec, site); err != nil {
		return err
	}
	c.pids = c.running.PIDs()
	c.plan = load.Plan{Address: c.running.Address, Shape: c.w.Shape, Conns: c.w.Conns}
	if c.w.ITL > 0 {
		c.plan.Ramp = ramp
	}
	if err := c.touch(ctx); err != nil {
		return err
	}
	c.out.RSSIdle, err = machine.Memory(c.pids)
	return err
}

// close stops what setUp has started.
func (c *cell) close() {
	if c.running != nil {
		c.running.Stop()
	}
	if c.engine != nil {
		c.engine.Close()
	}
}

var errNotServing = errors.New("no correct responses")

// touch sends a few requests of one token. The memory of the load then does not include one-time
// allocations of the target, and a target that does not work is not measured.
func (c *cell) touch(ctx context.Context) error {
	plan := c.plan
	plan.Conns, plan.Ramp, plan.Shape.Tokens, plan.Shape.Prompt = 1, 0, 1, min(plan.Shape.Prompt, 512)
	g := load.Start(ctx, plan)
	defer g.Stop(time.Second)
	t := g.Tally()
	const enough = 20
	if !until(ctx, 10*time.Second, func() bool { return t.Right.Load() >= enough || t.Bad() > enough }) || t.Bad() > enough {
		return fmt.Errorf("%w: %q", errNotServing, t.Problems())
	}
	return nil
}

// until polls a condition until it is true or the limit has passed.
func until(ctx context.Context, limit time.Duration, cond func() bool) bool {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	for !cond() {
		if !sleep.For(ctx, 5*time.Millisecond) {
			return cond()
		}
	}
	return true
}

// part applies the load, and measures for length after warmup.
func (c *cell) part(ctx context.Context, length, warmup time.Duration) error {
	g := load.Start(ctx, c.plan)
	defer g.Stop(0)
	if c.w.ITL > 0 {
		want := c.plan.Conns * 95 / 100 // the others are between two streams
		if c.w.Hold {
			want = c.plan.Conns
		}
		until(ctx, time.Minute, func() bool { return g.Open() >= want })
		c.out.Open = g.Open()
	}
	sleep.For(ctx, warmup)
	if err := c.window(ctx, g, length); err != nil {
		return err
	}
	grace := 10 * time.Second
	if c.w.ITL > 0 {
		grace = 0 // streams may not end soon
	}
	if g.Stop(grace) && grace > 0 {
		c.out.Failed++
		c.out.Problems = append(c.out.Problems, fmt.Sprintf("no response within %v after the load", grace))
	}
	c.bad(g.Tally())
	return nil
}

// bad adds the incorrect responses and their problems.
func (c *cell) bad(t *load.Tally) {
	c.out.Wrong += t.Wrong.Load()
	c.out.Failed += t.Failed.Load()
	c.out.Problems = append(c.out.Problems, t.Problems()...)
}

// window measures for length, or up to 20 s longer until a token arrives.
func (c *cell) window(ctx context.Context, g *load.Generator, length time.Duration) error {
	cpu, err := machine.CPU(c.pids)
	if err != nil {
		return err
	}
	tokens, start := c.tally.Tokens.Load(), time.Now()
	c.bad(g.Swap(&c.tally))
	empty := func() bool { return c.tally.Tokens.Load() == tokens && time.Since(start) < length+20*time.Second }
	for (time.Since(start) < length || empty()) && ctx.Err() == nil {
		sleep.For(ctx, max(min(length-time.Since(start), 250*time.Millisecond), 5*time.Millisecond))
		if kib, err := machine.Memory(c.pids); err == nil {
			c.rss = append(c.rss, kib)
		}
	}
	g.Swap(new(load.Tally))
	c.out.Seconds += time.Since(start).Seconds()
	after, err := machine.CPU(c.pids)
	c.out.CPU += after - cpu
	return cmp.Or(err, ctx.Err())
}

// finish completes the figures.
func (c *cell) finish() {
	out := &c.out
	if c.err != nil {
		out.Skipped = skipped(c.err)
		return
	}
	c.bad(&c.tally)
	if err := c.running.Err(); err != nil {
		out.Failed++
		out.Problems = append(out.Problems, err.Error())
	}
	out.Right, out.Tokens = c.tally.Right.Load(), c.tally.Tokens.Load()
	out.TTFT, out.ITL = report.TimesOf(&c.tally.TTFT), report.TimesOf(&c.tally.ITL)
	slices.Sort(c.rss)
	out.RSS = c.rss[len(c.rss)/2]
	s := c.engine.Stats()
	out.Violations = s.Violations
	if known := s.Prefills + s.Transfers; c.spec.Kind == target.Mesh && s.Requests > known {
		out.Bare = s.Requests - known
		out.Problems = append(out.Problems, fmt.Sprintf("%d requests reached a decode engine without a prefill", out.Bare))
	}
}

// addresses returns n free addresses: ports of 127.0.0.1 for a few, one port of n loopback
// addresses for many.
func addresses(n int) ([]string, error) {
	const few = 16
	ports, err := fleet.FreePorts(min(n, few))
	if err != nil {
		return nil, err
	}
	out := make([]string, n)
	for i := range out {
		if n <= few {
			out[i] = fmt.Sprintf("127.0.0.1:%d", ports[i])
		} else {
			out[i] = fmt.Sprintf("127.1.%d.%d:%d", i/200, 1+i%200, ports[0])
		}
	}
	return out, nil
}
