package estimate

import "time"

// Reliable is the number of samples from which a prediction may have consequences for a client.
const Reliable = 50

// Line is the time that an amount of work takes: Fixed + Each × work. The zero value predicts 0.
type Line struct {
	Fixed, Each float64 // seconds, and seconds per unit of work
	Samples     int     // number of learned samples; 0: nothing is known
}

// At returns the seconds that an amount of work takes.
func (l Line) At(work float64) float64 { return l.Fixed + l.Each*work }

// Rates has the learned times of a model, or of one of its instances. They are plain numbers, so that they
// also predict loads and numbers of instances that do not exist.
type Rates struct {
	Prefill  Line    // by the uncached tokens of the prompt and of those queued before it
	Transfer Line    // from prefill's answer to the first content, by the tokens of the prompt
	Token    Line    // seconds for one output token of a stream, by the streams of its decode instance
	Output   float64 // mean number of output tokens; 0: unknown
	Uncached float64 // mean number of prompt tokens that prefill computes; 0: unknown
	Pace     float64 // mean of the latest times per token, in seconds; 0: unknown
}

// TTFT predicts the seconds until the first token of a prompt of tokens tokens. uncached of them must be
// computed, after the queued tokens of all proxies.
func (r *Rates) TTFT(queued, uncached, tokens float64) float64 {
	return r.Prefill.At(queued+uncached) + r.Transfer.At(tokens)
}

// TimePerToken predicts the seconds between two tokens of each stream of a decode instance.
func (r *Rates) TimePerToken(streams float64) float64 { return r.Token.At(max(streams, 1)) }

// Samples returns the number of samples of the line with the fewest.
func (r *Rates) Samples() int {
	return min(r.Prefill.Samples, r.Transfer.Samples, r.Token.Samples)
}

// KV is the load on the KV cache of a decode instance.
type KV struct {
	Held     float64 // prompt tokens of the streams of all proxies
	Streams  float64 // of all proxies
	Capacity float64 // tokens; 0: unknown
	Usage    float64 // share in use by the engine's last report; 0: there is none
}

// KVUse predicts the share of the KV cache in use when the present streams end: their prompts and expected
// outputs, but at least the share that the engine reports. It is above 1 if they do not fit, and the reported
// share if the capacity is unknown.
func (r *Rates) KVUse(k KV) float64 {
	if k.Capacity <= 0 {
		return k.Usage
	}
	return max(k.Usage, (k.Held+k.Streams*r.Output)/k.Capacity)
}

// minOutput is the number of output tokens from which a stream is a sample of the time per token.
const minOutput = 8

// leastSlope bounds the fixed part of the mean time of prefill: a token takes at least 1/leastSlope of the
// mean time per token. With a larger bound, proxies that know little of each other's queues underestimate it,
// and send more than their share of the capacity.
const leastSlope = 2

// Streamed records a stream that has ended: the load of its decode instance when it was picked, the
// number of output tokens, and the time from the first to the last of them.
func (e *Estimator) Streamed(name string, d Decode, output int, took time.Duration) {
	if output < 1 {
		return
	}
	each := took.Seconds() / float64(output-1)
	e.learn(name, d.Address, func(m *model) {
		m.output.learn(float64(output))
		if output >= minOutput {
			m.pace.learn(each)
		}
	}, func(l *lines) {
		if output >= minOutput && took > 0 {
			l.token.learn(d.Running+1, each)
		}
	})
}

// Rates returns the learned times of a model; with an address, those of that instance where it has enough
// samples.
func (e *Estimator) Rates(name, address string) Rates {
	e.mu.Lock()
	defer e.mu.Unlock()
	m := e.models[name]
	if m == nil {
		return Rates{}
	}
	of := func(f func(*lines) *line) Line {
		if l := m.lineOf(address, f); l.known() {
			fixed, each := l.parts()
			return Line{Fixed: fixed, Each: each, Samples: l.samples}
		}
		return Line{}
	}
	prefill := of(func(l *lines) *line { return &l.prefill })
	if l := m.lineOf(address, func(l *lines) *line { return &l.prefill }); l.known() && l.x > 0 {
		// Waiting for unknown work, such as that of other proxies, can hide the time that a token takes. An
		// engine whose tokens seem to take no time would be sent any amount of work.
		prefill.Each = max(prefill.Each, l.y/l.x/leastSlope)
		prefill.Fixed = max(0, (l.y-prefill.Each*l.x)/l.n)
	}
	return Rates{
		Prefill:  prefill,
		Transfer: of(func(l *lines) *line { return &l.handover }),
		Token:    of(func(l *lines) *line { return &l.token }),
		Output:   m.output.value, Uncached: m.uncached.value, Pace: m.pace.value,
	}
}
