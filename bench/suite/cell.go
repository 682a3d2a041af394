package suite

import (
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
)

// cell is one target under one workload, once.
type cell struct {
	o      *Options
	lab    *target.Lab
	etcd   *target.Etcd
	w      Workload
	spec   target.Spec
	number int
	calm   *calm // of the group's first: before each round it is waited for a quiet moment

	engines *engines
	plan    load.Plan
	running *target.Running // nil without a process
	stop    func()          // ends it; nil without one
	members *target.Members // nil but for our proxy
	pids    []int
	before  engine.Stats
	tally   *load.Tally // of the parts of the window
	rss     []int64
	out     report.Cell
	err     error // why there are no figures
}

// Bounds of what a cell waits for.
const (
	openWait  = time.Minute      // until all streams are open
	drainWait = 10 * time.Second // until the last answers have come
	abortWait = time.Minute      // until the engines have seen the clients go
)

// group is cells that take turns, or a single one.
type group []*cell

// run does everything and returns the figures. A cell that fails leaves the others alone.
func (cells group) run(ctx context.Context) (out []report.Cell) {
	cells.measure(ctx)
	for _, c := range cells {
		if c.err != nil {
			c.out = skipped(c.err)
		}
		out = append(out, c.out) // complete only now that everything has been stopped
	}
	return out
}

func (cells group) measure(ctx context.Context) {
	var up group
	for _, c := range cells {
		defer c.close()
		if c.err = c.setUp(ctx); c.err == nil {
			up = append(up, c)
		}
	}
	for _, c := range up {
		c.err = c.begin()
	}
	parts, warmup := 1, cells[0].o.Warmup
	if len(cells) > 1 {
		parts = max(1, int(cells[0].o.Window/partLength))
	}
	for round := range parts {
		if len(up) > 0 {
			cells[0].calm.wait(ctx)
		}
		for i := range up {
			c := up[(round+i)%len(up)] // who comes behind whom makes a difference
			if c.err == nil && ctx.Err() == nil {
				c.err = c.part(ctx, c.o.Window/time.Duration(parts), warmup)
			}
		}
		warmup = min(warmup, partWarmup)
	}
	for _, c := range up {
		if c.err == nil {
			c.end()
		}
	}
}

// Cells that take turns do so within their windows too, as machines are busier now
// than in a second.
const (
	partLength = 500 * time.Millisecond
	partWarmup = 100 * time.Millisecond
)

// setUp starts what there is to start, and sees that it works. close is due after
// an error too.
func (c *cell) setUp(ctx context.Context) (err error) {
	c.engines, err = startEngines(ctx, c.o.Engine, c.o.Connector, c.w.Instances, c.w.ITL)
	if err != nil {
		return err
	}
	c.plan = load.Plan{
		Addresses: c.engines.decode, Shape: c.w.Shape, Conns: c.w.Conns, Ramp: c.w.Ramp, Seed: c.o.Seed,
		Strict: c.o.Engine == StrictEngine,
	}
	if c.w.ITL > 0 {
		c.plan.Opening = 64
	}
	if c.o.Rate > 0 && !c.w.Hold {
		c.plan.Rate = c.o.Rate
	}
	switch c.spec.Kind {
	case target.Direct:
	case target.TwoHop:
		c.plan.Prefill = c.engines.prefill
	default:
		if c.stop, err = c.start(ctx); err != nil {
			return err
		}
		c.plan.Addresses = []string{c.running.Address}
	}
	return c.touch(ctx, c.plan)
}

// close ends what setUp has started.
func (c *cell) close() {
	if c.stop != nil {
		c.stop()
	}
	if c.engines != nil {
		c.engines.close()
	}
}

// start starts the target, for our proxy with its membership.
func (c *cell) start(ctx context.Context) (stop func(), err error) {
	site := target.Site{
		Prefill: c.engines.prefill, Decode: c.engines.decode, Connector: c.o.Connector,
		Prefix: fmt.Sprintf("/bench-%d", c.number),
	}
	stop = func() {}
	if c.spec.Kind == target.Mesh {
		site.Etcd = c.etcd.Endpoint
		members, err := c.etcd.Register(ctx, site.Prefix, c.o.Connector, c.engines.prefill, c.engines.decode)
		if err != nil {
			return nil, err
		}
		c.members = members
		members.Rest(true)
		ctx, cancel := context.WithCancel(ctx)
		done := make(chan error, 1)
		go func() { done <- members.Run(ctx, c.w.Changes, c.o.Seed) }()
		stop = func() {
			cancel()
			if err := <-done; err != nil {
				c.out.Problems = append(c.out.Problems, err.Error())
			}
			c.out.Changes = members.Changes
		}
	}
	c.running, err = c.lab.Start(ctx, c.spec, site)
	if err != nil {
		stop()
		return nil, err
	}
	c.pids = c.running.PIDs()
	stopMembers := stop
	return func() {
		stopMembers()
		c.running.Stop()
	}, nil
}

// touch sends a few requests, so that what is loaded once is not counted as
// the load's memory, and a target that does not work is not measured.
func (c *cell) touch(ctx context.Context, plan load.Plan) error {
	plan.Conns, plan.Rate, plan.Ramp = 1, 0, 0
	plan.Shape.Tokens = min(plan.Shape.Tokens, 2)
	if c.w.ITL > 0 {
		plan.Shape.Tokens = 1 // the second would be waited for
	}
	plan.Shape.Prompt = min(plan.Shape.Prompt, 512)
	g, err := load.Start(ctx, plan)
	if err != nil {
		return err
	}
	defer g.Stop(0)
	tally := g.Tally()
	const enough, atMost = 20, 10 * time.Second
	if !until(ctx, atMost, func() bool { return tally.Right.Load() >= enough || tally.Bad() > enough }) || tally.Bad() > enough {
		return fmt.Errorf("%w: %v %q", errNotServing, tally, tally.Problems())
	}
	return nil
}

var errNotServing = errors.New("it does not answer as it should")

// until polls a condition.
func until(ctx context.Context, limit time.Duration, cond func() bool) bool {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !cond() {
		select {
		case <-ctx.Done():
			return cond()
		case <-tick.C:
		}
	}
	return true
}

// pause waits.
func pause(ctx context.Context, d time.Duration) { until(ctx, d, func() bool { return false }) }

// begin takes down what was before the load.
func (c *cell) begin() error {
	c.out.Clients, c.out.Prompt = c.plan.Conns, c.plan.Shape.Prompt
	if c.pids != nil {
		u, err := machine.Read(c.pids)
		if err != nil {
			return err
		}
		c.out.RSSIdle = u.RSS
		if err := machine.ResetPeak(c.pids); err != nil {
			return err
		}
	}
	c.before, c.tally = c.engines.stats(), new(load.Tally)
	return nil
}

// part runs the load for a part of the window, and changes the membership as long.
func (c *cell) part(ctx context.Context, length, warmup time.Duration) error {
	if c.members != nil {
		c.members.Rest(false)
		defer c.members.Rest(true)
	}
	g, err := load.Start(ctx, c.plan)
	if err != nil {
		return err
	}
	defer g.Stop(0)
	if c.w.ITL > 0 {
		// A moment is always between two streams; when they stay, all must be open.
		want := c.plan.Conns * 95 / 100
		if c.w.Hold {
			want = c.plan.Conns
		}
		until(ctx, openWait, func() bool { return g.Open() >= want })
		c.out.Open = g.Open()
	}
	pause(ctx, warmup)
	if err := c.window(ctx, g, length); err != nil {
		return err
	}
	if c.w.Vanish {
		c.vanish(ctx, g)
	}
	grace := drainWait
	if c.w.ITL > 0 {
		grace = 0
	}
	if cut := g.Stop(grace); cut > 0 && grace > 0 {
		c.out.Failed += uint64(cut)
		c.out.Problems = append(c.out.Problems, fmt.Sprintf("%d requests had no answer %v after the end", cut, grace))
	}
	c.bad(g.Tally())
	return nil
}

// bad takes in what went wrong.
func (c *cell) bad(t *load.Tally) {
	c.out.Wrong += t.Wrong.Load()
	c.out.Broken += t.Broken.Load()
	c.out.Failed += t.Failed.Load()
	c.out.Left += t.Left.Load()
	c.out.Problems = append(c.out.Problems, t.Problems()...)
}

// end fills in the figures.
func (c *cell) end() {
	out := &c.out
	c.bad(c.tally)
	if c.running != nil && !c.running.Alive() {
		out.Failed++
		out.Problems = append(out.Problems, "the target ended: "+c.running.Tail())
	}
	out.Right, out.Tokens = c.tally.Right.Load(), c.tally.Tokens.Load()
	if c.w.Shape.Stream {
		const others = 3 // the role, the usage and the end marker
		out.Events = out.Tokens + others*out.Right
	}
	out.TTFT, out.ITL, out.Total = report.TimesOf(&c.tally.TTFT), report.TimesOf(&c.tally.ITL), report.TimesOf(&c.tally.Total)
	if len(c.rss) > 0 {
		slices.Sort(c.rss)
		out.RSS = c.rss[len(c.rss)/2]
	}
	after := c.engines.stats()
	out.Prefills, out.Handovers = after.Prefills-c.before.Prefills, after.Handovers-c.before.Handovers
	out.Violations = after.Violations - c.before.Violations
	if c.spec.Kind == target.Floor || c.spec.Kind == target.Mesh && c.o.Connector == "nixl" {
		// A request may have been counted before the beginning, and what it was after that.
		if known := out.Prefills + out.Handovers; after.Requests-c.before.Requests > known {
			out.Bare = after.Requests - c.before.Requests - known
			out.Problems = append(out.Problems, fmt.Sprintf("%d requests went to a decode engine without a prefill", out.Bare))
		}
	}
}

// emptyWait bounds how much longer than asked for a window may last.
const emptyWait = 20 * time.Second

// window measures for a while.
func (c *cell) window(ctx context.Context, g *load.Generator, length time.Duration) error {
	cpu, err := machine.CPU(c.pids)
	if err != nil && c.pids != nil {
		return err
	}
	tokens := c.tally.Tokens.Load()
	c.bad(g.Swap(c.tally))
	start := time.Now()
	// A window in which nothing came would say nothing, so it goes on for a while.
	empty := func() bool { return c.tally.Tokens.Load() == tokens && time.Since(start) < length+emptyWait }
	for (time.Since(start) < length || empty()) && ctx.Err() == nil {
		pause(ctx, max(min(length-time.Since(start), 250*time.Millisecond), 5*time.Millisecond))
		if kib, err := machine.Memory(c.pids); err == nil && c.pids != nil {
			c.rss = append(c.rss, kib)
		}
	}
	g.Swap(new(load.Tally))
	c.out.Seconds += time.Since(start).Seconds()
	if c.pids != nil {
		u, err := machine.Read(c.pids)
		if err != nil {
			return err
		}
		c.out.CPU += u.CPU - cpu
		c.out.RSSPeak = u.Peak
	}
	return nil
}

// vanish lets the clients leave and waits until the engines know.
func (c *cell) vanish(ctx context.Context, g *load.Generator) {
	start := time.Now()
	g.Vanish()
	c.out.Leaving = time.Since(start).Seconds()
	until(ctx, abortWait, func() bool { return c.engines.stats().Active == 0 })
	s := c.engines.stats()
	c.out.NotAborted = s.Active
	c.out.Aborted = s.LastAbort.Sub(start).Seconds()
}
