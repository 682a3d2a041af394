package ground

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/internal/sched/estimate"
	"github.com/pdmesh/pdmesh/internal/sched/roles"
	"github.com/pdmesh/pdmesh/sim/loadgen"
)

// Day is a fleet of engines in both roles under a load whose ratio of prompts to answers changes,
// without network and clock. A prefill engine computes one prompt at a time. The step time of a
// decode engine grows faster than the number of its streams.
type Day struct {
	Engines int
	Phases  []Phase
	Targets roles.Targets
	Noise   float64 // e.g. 0.2: rates, prompts and steps vary by 20 %
	Seed    uint64
}

// Phase is a part of a day.
type Phase struct {
	Seconds float64
	Rate    float64 // requests per second
	Entries []loadgen.Entry
}

// Of the simulated engines.
const (
	dayUncached = 0.63 // share of the trace's prompt tokens that are not cached
	dayPrefill  = 25000.0
	dayTransfer = 2e-6 // seconds for each token
	dayStep     = 0.015
	dayBatch    = 0.0006
	dayKV       = 800000.0 // tokens
	dayPatience = 3.0      // a request is refused if a prediction exceeds its target by this factor
)

// DayResult is the result of a day.
type DayResult struct {
	Good   []float64 // share of the requests within the targets, by phase
	All    float64
	Moves  []string
	Wanted [2]float64 // advice at the end: the mean of the last ten minutes for prefill and decode
}

// NewDay returns the day curve: prompt-heavy, answer-heavy, prompt-heavy, with the requests of a trace
// whose ratio is above and below its median.
func NewDay(entries []loadgen.Entry, engines int, phase time.Duration, rate, noise float64, seed uint64) *Day {
	sorted := slices.Clone(entries)
	slices.SortStableFunc(sorted, func(a, b loadgen.Entry) int {
		return b.InputLength*max(1, a.OutputLength) - a.InputLength*max(1, b.OutputLength)
	})
	prompts, answers := sorted[:len(sorted)/2], sorted[len(sorted)/2:]
	scale := rate * float64(engines) / 8
	return &Day{Engines: engines, Targets: dayTargets(), Noise: noise, Seed: seed, Phases: []Phase{
		{phase.Seconds(), 8 * scale, prompts}, {phase.Seconds(), 10 * scale, answers}, {phase.Seconds(), 8 * scale, prompts},
	}}
}

// Compare returns a table of all static ratios, of an oracle that has the best one in each phase, and
// of automatic roles that start with the worst one.
func (o *Day) Compare() string {
	var b strings.Builder
	b.WriteString("| roles | goodput | by phase | moves | moves per hour |\n|---|---|---|---|---|\n")
	hours := 0.0
	for _, p := range o.Phases {
		hours += p.Seconds / 3600
	}
	row := func(name string, r DayResult) {
		fmt.Fprintf(&b, "| %s | %.1f %% | %.2f | %d | %.1f |\n", name, 100*r.All, r.Good, len(r.Moves), float64(len(r.Moves))/hours)
	}
	results := map[int]DayResult{}
	best, worst := 1, 1
	ideal := make([]int, len(o.Phases))
	for p := 1; p < o.Engines; p++ {
		results[p] = o.Run([]int{p}, false)
		row(fmt.Sprintf("static %d prefill, %d decode", p, o.Engines-p), results[p])
		if results[p].All > results[best].All {
			best = p
		}
		if results[p].All < results[worst].All {
			worst = p
		}
		for i := range ideal {
			if was, ok := results[ideal[i]]; !ok || results[p].Good[i] > was.Good[i] {
				ideal[i] = p
			}
		}
	}
	row(fmt.Sprintf("oracle %v prefill", ideal), o.Run(ideal, false))
	row(fmt.Sprintf("automatic from %d prefill", worst), o.Run([]int{worst}, true))
	return b.String()
}

// enough is the goodput with which a fleet meets its targets.
const enough = 0.9

// CompareAdvice returns a table of the smallest fleet that meets the targets at ten loads, and of the
// advice of a fleet with that size and of one with two more engines of each role.
func CompareAdvice(entries []loadgen.Entry, seed uint64) string {
	var b strings.Builder
	b.WriteString("| requests/s | smallest fleet | advice there | advice with two more of each role |\n|---|---|---|---|\n")
	for rate := 2.0; rate <= 20; rate += 2 {
		size := SmallestFleet(entries, rate, seed)
		at := func(more int) string {
			wanted := Fleet(entries, rate, seed, size[0]+more, size[1]+more).Wanted
			return fmt.Sprintf("%.1f prefill, %.1f decode", wanted[0], wanted[1])
		}
		fmt.Fprintf(&b, "| %g | %d prefill, %d decode | %s | %s |\n", rate, size[0], size[1], at(0), at(2))
	}
	return b.String()
}

// SmallestFleet returns the numbers of prefill and decode engines of the smallest fleet that meets the
// targets, in the mean of three seeds; of several, that with the best goodput.
func SmallestFleet(entries []loadgen.Entry, rate float64, seed uint64) (size [2]int) {
	const plenty, seeds = 24, 3
	good := func(prefill, decode int) (mean float64) {
		for i := range uint64(seeds) {
			mean += Fleet(entries, rate, seed+i, prefill, decode).All / seeds
		}
		return mean
	}
	least := [2]int{1, 1} // one less than are needed with plenty of the other role, which is no exact bound
	for least[0] < plenty && good(least[0]+1, plenty) < enough {
		least[0]++
	}
	for least[1] < plenty && good(plenty, least[1]+1) < enough {
		least[1]++
	}
	best := 0.0
	for total := least[0] + least[1]; best < enough && total < 2*plenty; total++ {
		for p := least[0]; p <= total-least[1]; p++ {
			if g := good(p, total-p); g > best {
				best, size = g, [2]int{p, total - p}
			}
		}
	}
	return size
}

// Fleet runs a constant load for 25 minutes.
func Fleet(entries []loadgen.Entry, rate float64, seed uint64, prefill, decode int) DayResult {
	d := &Day{Engines: prefill + decode, Targets: dayTargets(), Seed: seed, Noise: 0.2, Phases: []Phase{{1500, rate, entries}}}
	return d.Run([]int{prefill}, false)
}

func dayTargets() roles.Targets { return roles.Targets{TTFT: 4, TPOT: 0.05} }

// Run runs the day. prefill is the number of prefill engines by phase; with one number, that from the
// start on.
func (o *Day) Run(prefill []int, automatic bool) DayResult {
	d := &day{Day: o, rng: rand.New(rand.NewPCG(o.Seed, 43)), noise: rand.New(rand.NewPCG(o.Seed, 44)), engines: make([]*dayEngine, o.Engines), demand: roles.Demand{Model: Served}}
	for i := range d.engines {
		d.engines[i] = &dayEngine{name: fmt.Sprintf("e%d", i)}
	}
	var res DayResult
	var auto roles.Automatic
	good, all, end, wanted := 0, 0, 0.0, 0.0
	for i, p := range o.Phases {
		if i < len(prefill) {
			d.setRatio(prefill[i])
		}
		d.good, d.all = 0, 0
		next, factor := d.now, 1.0
		for end += p.Seconds; d.now < end; {
			tick := math.Floor(d.now) + 1
			if math.Mod(tick, 60) == 0 {
				factor = d.vary(d.rng)
			}
			for ; next < tick; next += d.rng.ExpFloat64() / (p.Rate * factor) {
				d.until(next)
				d.arrive(p.Entries[d.rng.IntN(len(p.Entries))])
			}
			d.until(tick)
			now := time.Unix(0, 0).Add(time.Duration(tick * float64(time.Second)))
			d.demand.Add(now, d.load(), d.speed.Rates(Served, ""), o.Targets)
			if i == len(o.Phases)-1 && tick > end-600 {
				wanted++
				for n, role := range instance.Roles() {
					res.Wanted[n] += float64(d.demand.Advise(role).Wanted)
				}
			}
			if !automatic {
				continue
			}
			if m, ok := auto.Decide(now, []*roles.Demand{&d.demand}, d.movable()); ok {
				auto.Moved(now)
				d.move(m.Address, m.Role)
				res.Moves = append(res.Moves, fmt.Sprintf("%.0fs %s: %s", d.now, m.Role, m.Reason))
			}
		}
		res.Good = append(res.Good, float64(d.good)/max(1, float64(d.all)))
		good, all = good+d.good, all+d.all
	}
	res.All = float64(good) / max(1, float64(all))
	for i := range res.Wanted {
		res.Wanted[i] /= max(1, wanted)
	}
	return res
}

type day struct {
	*Day
	rng       *rand.Rand // of the load, which is the same for every fleet
	noise     *rand.Rand
	now       float64
	events    events[float64]
	engines   []*dayEngine
	speed     estimate.Estimator
	demand    roles.Demand
	good, all int
	refused   float64
}

// dayEngine is an engine: a queue of prompts, and streams that share its steps.
type dayEngine struct {
	name     string
	prefill  bool // its role
	free     float64
	waiting  float64 // tokens
	prompts  int
	streams  []*dayStream // running
	blocked  []*dayStream // without space in the KV cache
	held     float64
	tokens   float64 // of each stream, since the start
	at, step float64
	version  int // of the next end
}

type dayStream struct {
	arrived, prefilled, first    float64
	input, output, end, uncached float64
	running                      int
}

func (d *day) later(after float64, do func()) {
	at := d.now + after
	d.events.add(at, func() { d.now = at; do() })
}

func (d *day) until(at float64) {
	d.events.until(at)
	d.now = at
}

// vary returns a factor within the noise.
func (d *day) vary(rng *rand.Rand) float64 { return 1 + d.Noise*(2*rng.Float64()-1) }

func (d *day) setRatio(prefill int) {
	for i, e := range d.engines {
		e.prefill = i < prefill
	}
}

func (d *day) move(name string, to instance.Role) {
	for _, e := range d.engines {
		if e.name == name {
			e.prefill = to == instance.Prefill
		}
	}
}

func (d *day) movable() (out []roles.Engine) {
	for _, e := range d.engines {
		out = append(out, roles.Engine{Address: e.name, Models: []string{Served}, Prefill: e.prefill, Decode: !e.prefill, InFlight: int64(e.prompts + len(e.streams) + len(e.blocked))})
	}
	return out
}

// load is what the proxies know: their own counts.
func (d *day) load() roles.Load {
	l := roles.Load{Capacity: dayKV, Refused: d.refused}
	d.refused = 0
	for _, e := range d.engines {
		l.Waiting += e.waiting
		if e.prefill {
			l.Prefill++
			if e.prompts > 0 {
				l.Computing++
			}
			continue
		}
		l.Decode++
		l.Streams += float64(len(e.streams) + len(e.blocked))
		l.Held += e.held
		l.Usage += e.held / dayKV
	}
	l.Usage /= max(l.Decode, 1)
	return l
}

// pick returns the engine of a role with the least load.
func (d *day) pick(prefill bool, load func(*dayEngine) float64) (least *dayEngine) {
	for _, e := range d.engines {
		if e.prefill == prefill && (least == nil || load(e) < load(least)) {
			least = e
		}
	}
	return least
}

func (d *day) arrive(r loadgen.Entry) {
	d.all++
	e := d.pick(true, func(e *dayEngine) float64 { return e.waiting })
	s := &dayStream{arrived: d.now, input: float64(r.InputLength), output: float64(max(1, r.OutputLength)), uncached: dayUncached * float64(r.InputLength)}
	idlest := d.pick(false, streams)
	if e.waiting > 0 && (e.waiting+s.uncached)/dayPrefill > dayPatience*d.Targets.TTFT || len(idlest.blocked) > 0 || step(len(idlest.streams)+1) > dayPatience*d.Targets.TPOT {
		d.refused++
		return
	}
	takes := s.uncached / dayPrefill * d.vary(d.noise)
	if len(e.streams) > 0 {
		takes *= 1.5 // it still decodes
	}
	p := estimate.Prefill{Address: e.name, Queued: e.waiting, Uncached: s.uncached}
	e.free = max(e.free, d.now) + takes
	e.waiting += s.uncached
	e.prompts++
	d.later(e.free-d.now, func() {
		e.waiting = max(0, e.waiting-s.uncached)
		e.prompts--
		s.prefilled = d.now
		d.speed.Prefilled(Served, p, seconds(d.now-s.arrived))
		d.later(dayTransfer*s.input, func() { d.decode(s) })
	})
}

func (d *day) decode(s *dayStream) {
	e := d.pick(false, streams)
	s.running = len(e.streams)
	if len(e.streams) > 0 && e.held+s.input+s.output > dayKV {
		e.blocked = append(e.blocked, s)
		return
	}
	d.begin(e, s)
}

func (d *day) begin(e *dayEngine, s *dayStream) {
	d.advance(e)
	e.held += s.input + s.output
	s.end = e.tokens + s.output
	e.streams = append(e.streams, s)
	d.schedule(e)
	s.first = d.now + e.step
	d.speed.Handed(Served, estimate.Decode{Address: e.name, Tokens: s.input}, seconds(s.first-s.prefilled))
}

// streams returns the streams of an engine.
func streams(e *dayEngine) float64 { return float64(len(e.streams) + len(e.blocked)) }

// step returns the seconds of a step with a number of streams.
func step(streams int) float64 {
	n := 8 * math.Ceil(float64(streams)/8) // batches have the sizes of CUDA graphs
	return dayStep + dayBatch*n*(1+n/200)
}

// advance counts the tokens of an engine up to now.
func (d *day) advance(e *dayEngine) {
	if e.step > 0 && len(e.streams) > 0 {
		e.tokens += (d.now - e.at) / e.step
	}
	e.at = d.now
}

// schedule sets the time of a step and of the next end of a stream.
func (d *day) schedule(e *dayEngine) {
	e.version++
	if len(e.streams) == 0 {
		return
	}
	if e.step = step(len(e.streams)) * d.vary(d.noise); e.prompts > 0 {
		e.step *= 1.5
	}
	next := slices.MinFunc(e.streams, func(a, b *dayStream) int { return int(math.Copysign(1, a.end-b.end)) })
	version := e.version
	d.later(max(0, next.end-e.tokens)*e.step, func() {
		if e.version == version {
			d.finish(e, next)
		}
	})
}

func (d *day) finish(e *dayEngine, s *dayStream) {
	d.advance(e)
	e.streams = slices.DeleteFunc(e.streams, func(o *dayStream) bool { return o == s })
	e.held -= s.input + s.output
	took := d.now - s.first
	d.speed.Streamed(Served, estimate.Decode{Address: e.name, Running: float64(s.running)}, int(s.output), seconds(took))
	if s.first-s.arrived <= d.Targets.TTFT && took/s.output <= d.Targets.TPOT {
		d.good++
	}
	d.schedule(e)
	if len(e.blocked) > 0 && e.held+e.blocked[0].input+e.blocked[0].output <= dayKV {
		next := e.blocked[0]
		e.blocked = e.blocked[1:]
		d.begin(e, next)
	}
}
