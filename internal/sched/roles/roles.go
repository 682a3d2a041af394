// Package roles computes the load of each role of a fleet, the number of instances that it needs, and when an
// instance should change its role. It does no I/O and reads no clock.
package roles

import (
	"fmt"
	"math"
	"time"

	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/internal/sched/estimate"
)

// Targets are upper bounds in seconds for the times that clients see.
type Targets struct {
	TTFT float64 // to the first token
	TPOT float64 // for each further output token; 0: no target
}

// Load is the load of a model at one moment, from the requests of all proxies.
type Load struct {
	// Prefill and Decode are the numbers of usable instances. One in both roles counts half in each.
	Prefill, Decode float64
	Computing       float64 // prefill instances with prompts to compute
	Waiting         float64 // tokens of prompts not computed yet, including those that wait in proxies
	Streams, Held   float64 // requests on decode instances, and the tokens of their prompts
	Capacity        float64 // mean tokens of the KV cache of a decode instance; 0: unknown
	Usage           float64 // mean share of the KV caches in use, as reported by the engines
	Refused         float64 // requests refused by proxies since the last Load because engines had no capacity
}

const (
	// window is the time constant in seconds of the means.
	window = 30.0
	// speedWindow is the time constant in seconds of the speed of engines.
	speedWindow = 300.0
	// horizon is the time in seconds for which a backlog of prompts is predicted.
	horizon = 60.0
	// fullest is the utilization up to which the length of a queue is predicted.
	fullest = 0.98
	// headroom is the planned load of prefill, relative to the mean: the load varies from minute to minute,
	// and a prompt does not change its queue.
	headroom = 1.1
	// leastFixed is the minimum part of a step that does not depend on the number of streams.
	leastFixed = 0.4
	// spared is the pressure below which a role can pass an engine to the other one, and fewer the pressure
	// below which it needs one instance less.
	spared = 0.7
	fewer  = 0.9
	// maxPressure bounds every pressure, and maxGrowth the wanted instances relative to the present ones.
	maxPressure = 100.0
	maxGrowth   = 4
)

// Demand is the recent demand for a model, as means of its load. Its zero value has seen no load. It
// is not safe for concurrent use.
type Demand struct {
	Model   string
	targets Targets
	rates   estimate.Rates
	at      time.Time
	now     Load // means, except that Prefill, Decode and Capacity are those of the last Load
	growth  float64
	learned float64 // seconds for which the speed of engines has been known
	refused float64 // requests per second
}

// Add adds the load at a time, and the speed of the engines and the targets then.
func (d *Demand) Add(now time.Time, l Load, r estimate.Rates, t Targets) {
	seconds := now.Sub(d.at).Seconds()
	weight := 1 - math.Exp(-seconds/window)
	if d.at.IsZero() || seconds > horizon {
		*d = Demand{Model: d.Model, now: l}
		seconds, weight = 1, 0
	}
	d.at, d.targets = now, t
	if seconds <= 0 {
		return
	}
	m, was := &d.now, d.rates
	if d.rates = r; was.Prefill.Samples > 0 && was.Token.Samples > 0 {
		// Uncached and Output are means of few requests.
		d.rates.Uncached = was.Uncached + weight*(r.Uncached-was.Uncached)
		d.rates.Output = was.Output + weight*(r.Output-was.Output)
		d.learned += seconds
		slow := max(1-math.Exp(-seconds/speedWindow), seconds/(d.learned+seconds))
		for _, one := range [][2]*estimate.Line{{&d.rates.Prefill, &was.Prefill}, {&d.rates.Token, &was.Token}} {
			one[0].Fixed = one[1].Fixed + slow*(one[0].Fixed-one[1].Fixed)
			one[0].Each = one[1].Each + slow*(one[0].Each-one[1].Each)
		}
	}
	for _, one := range [][2]*float64{
		{&m.Computing, &l.Computing}, {&m.Waiting, &l.Waiting}, {&m.Streams, &l.Streams}, {&m.Held, &l.Held}, {&m.Usage, &l.Usage},
	} {
		*one[0] += weight * (*one[1] - *one[0])
	}
	m.Prefill, m.Decode, m.Capacity = l.Prefill, l.Decode, l.Capacity
	d.growth = (l.Waiting - m.Waiting) / window // the mean lags by the window
	d.refused += weight * (l.Refused/seconds - d.refused)
}

// Known reports whether the pressures can be predicted.
func (d *Demand) Known() bool {
	return d.rates.Prefill.Samples > 0 && d.rates.Token.Samples > 0 && d.rates.Uncached > 0 && d.targets.TTFT > 0
}

// Instances returns the number of usable instances of a role.
func (d *Demand) Instances(r instance.Role) float64 {
	if r == instance.Prefill {
		return d.now.Prefill
	}
	return d.now.Decode
}

// Pressure predicts the load of a role with n instances in units of its target: above 1, the target is
// missed. Without an instance it is maxPressure, else 0 while it can't be predicted.
func (d *Demand) Pressure(r instance.Role, n float64) float64 {
	switch {
	case n <= 0:
		return maxPressure
	case !d.Known():
		return 0
	case r == instance.Prefill:
		return min(d.prefill(n)/d.targets.TTFT, maxPressure)
	}
	kv, tpot := d.decode(n)
	if d.targets.TPOT > 0 {
		kv = max(kv, tpot/d.targets.TPOT)
	}
	return min(kv, maxPressure)
}

// service returns the seconds in which a prefill instance computes a prompt, and the mean number of busy
// instances. It includes the instances that the growth of the backlog and the refused requests would need.
func (d *Demand) service() (seconds, busy float64) {
	seconds = max(d.rates.Prefill.At(d.rates.Uncached), 1e-6)
	return seconds, max(0, d.now.Computing+d.growth*seconds/d.rates.Uncached+d.refused*seconds)
}

// prefill predicts the 90th percentile of the seconds that prefill takes for the next prompt with n
// instances. It is the larger of the wait in a queue in equilibrium (M/M/n, with Sakasegawa's approximation)
// and the wait for a backlog, plus the time for the prompt itself.
func (d *Demand) prefill(n float64) float64 {
	service, busy := d.service()
	use := min(headroom*busy/n, fullest)
	waits := math.Pow(use, math.Sqrt(2*(n+1))-1) // the share of prompts that wait
	queue := max(0, service/(n*(1-use))*math.Log(10*waits))
	backlog := (d.now.Waiting*service/d.rates.Uncached + (busy-n)*horizon) / n
	return d.rates.Prefill.At(max(queue, backlog)*d.rates.Uncached/service + d.rates.Uncached)
}

// decode predicts the share of the KV cache in use and the seconds for an output token with n instances. They
// generate as many tokens per second as now, and also those of the prompts that prefill does not manage to
// compute.
func (d *Demand) decode(n float64) (kv, tpot float64) {
	r := d.rates
	now := max(d.now.Streams/max(d.now.Decode, 0.5), 1)
	step := r.TimePerToken(now)
	// Every step reads the weights, whatever the number of streams. A line through samples with nearly the
	// same number shows little of that.
	r.Token.Fixed = max(r.Token.Fixed, leastFixed*step)
	r.Token.Each = (step - r.Token.Fixed) / now
	tokens := d.now.Streams/step + max(0, d.growth/r.Uncached+d.refused)*r.Output
	each := tokens / n // the number of streams x has x = each * TimePerToken(x)
	streams := each * r.Token.Fixed / max(1-each*r.Token.Each, 1-fullest)
	held := r.Uncached
	if d.now.Streams > 0 {
		held = d.now.Held / d.now.Streams
	}
	return r.KVUse(estimate.KV{Held: held * streams, Streams: streams, Capacity: d.now.Capacity, Usage: d.now.Usage * d.now.Decode / n}), r.TimePerToken(streams)
}

// Advise returns the advice for a role.
func (d *Demand) Advise(r instance.Role) instance.Advice {
	n := d.Instances(r)
	a := instance.Advice{Model: d.Model, Role: r, Instances: n, Known: d.Known(), Wanted: int(math.Ceil(n))}
	if a.Reason = "too few requests were measured"; n <= 0 {
		a.Reason = d.describe(r, n)
	}
	if !a.Known {
		return a
	}
	a.Pressure, a.Fewer = d.Pressure(r, n), d.Pressure(r, n-1)
	now := d.describe(r, n)
	switch {
	case a.Pressure > 1:
		for a.Wanted = max(a.Wanted, 1); a.Wanted < int(maxGrowth*max(n, 1)) && d.Pressure(r, float64(a.Wanted)) > 1; a.Wanted++ {
			if d.Pressure(r, float64(a.Wanted+1)) > 0.99*d.Pressure(r, float64(a.Wanted)) && float64(a.Wanted) >= n {
				a.Reason = fmt.Sprintf("%s; more than %d would not help", now, a.Wanted)
				return a
			}
		}
	case a.Wanted > 1 && d.Pressure(r, float64(a.Wanted-1)) < fewer:
		for a.Wanted > 1 && d.Pressure(r, float64(a.Wanted-1)) < fewer {
			a.Wanted--
		}
	case n > 1:
		a.Reason = fmt.Sprintf("%s; with one fewer: %s", now, d.describe(r, n-1))
		return a
	}
	a.Reason = fmt.Sprintf("%s; with %d: %s", now, a.Wanted, d.describe(r, float64(a.Wanted)))
	return a
}

// describe returns the figures that determine a pressure.
func (d *Demand) describe(r instance.Role, n float64) string {
	if n <= 0 {
		return "there is no instance"
	}
	if r == instance.Prefill {
		return fmt.Sprintf("9 of 10 first tokens come within %.2f s (target %.2f s)", min(d.prefill(n), maxPressure*d.targets.TTFT), d.targets.TTFT)
	}
	kv, tpot := d.decode(n)
	return fmt.Sprintf("a token takes %.0f ms (target %.0f ms), the KV cache is %.0f %% full", 1000*tpot, 1000*d.targets.TPOT, 100*kv)
}
