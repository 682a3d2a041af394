// Package estimate compares the times of earlier requests, to decide whether prefill and decode serve a
// prompt or decode alone (decode-only).
package estimate

import (
	"maps"
	"math"
	"sync"
	"time"

	"github.com/pdmesh/pdmesh/internal/forward/bypass"
)

// The reasons for prefill and decode. Those for decode-only are in package bypass.
const (
	Learning = "learning" // there are too few samples
	Faster   = "faster"   // it is faster, or delays running streams less
	Full     = "decode_full"
	Refresh  = "explore" // decode-only would be faster, but prefill needs new samples

	Connector = "connector" // no estimate: decode-only is impossible
	Media     = "media"     // no estimate: the request has images or sound
)

const (
	// exploreEvery is the number of decisions for a model after which one takes the other way, for a new
	// sample; learnDecodeOnlyEvery is the same while decode-only has too few samples.
	exploreEvery         = 64
	learnDecodeOnlyEvery = 8
	// maxExploreCost bounds the cost of such a decision, relative to the better way.
	maxExploreCost = 3
	// margin is the relative advantage that the other way needs before prompts of this length change to it.
	margin = 0.1
	// keepUnused is the minimum time for which a model stays known without requests.
	keepUnused = 7 * 24 * time.Hour
	// maxInstances bounds the instances of a model that have separate lines.
	maxInstances = 1024
)

// Prefill is the work of a request on a prefill instance, in tokens.
type Prefill struct {
	Address          string
	Queued, Uncached float64
}

// Decode is the work on a decode instance. The cached part of the prompt is not known, so all of it counts.
type Decode struct {
	Address        string
	Queued, Tokens float64
	Running        float64 // streams that wait while it computes a prompt
	Full           bool    // it must not compute the prompt
}

// Decision is one of the two ways, with its reason.
type Decision struct {
	DecodeOnly bool
	Reason     string
	// Stall is the time in seconds that all running streams together wait while decode computes the prompt.
	Stall float64
}

// Estimator learns from requests and decides. It is safe for concurrent use; its zero value
// is ready.
type Estimator struct {
	mu     sync.Mutex // guards all below; held for a few microseconds at most
	models map[string]*model
	swept  time.Time // last call of sweep
}

// lines has the times of one instance, or of all instances of a model.
type lines struct {
	prefill    line // to prefill's answer, by the tokens computed and those queued before them
	handover   line // from prefill's answer to the first content, by the tokens of the prompt
	decodeOnly line // to the first content of decode-only, by the tokens of the prompt and those queued
	token      line // for one output token, by the streams of the decode instance
}

type model struct {
	lines
	instances       map[string]*lines
	queued, running mean // of decode instances
	output          mean // tokens of an answer
	uncached        mean // tokens of a prompt that prefill computes
	pace            mean // seconds for one output token
	decodeOnly      [64]bool
	decisions       uint64
	used            bool // since the last sweep
}

type mean struct{ n, value float64 }

func (m *mean) learn(v float64) {
	m.n = min(m.n+1, 16)
	m.value += (v - m.value) / m.n
}

// Prefilled records the time that a prefill instance took to answer.
func (e *Estimator) Prefilled(name string, p Prefill, took time.Duration) {
	e.learn(name, p.Address, func(m *model) { m.uncached.learn(p.Uncached) },
		func(l *lines) { l.prefill.learn(p.Queued+p.Uncached, took.Seconds()) })
}

// Handed records the time from prefill's answer to the first content of decode.
func (e *Estimator) Handed(name string, d Decode, took time.Duration) {
	e.learn(name, d.Address, d.note, func(l *lines) { l.handover.learn(d.Tokens, took.Seconds()) })
}

// ServedDecodeOnly records the time until decode began its answer without a prefill.
func (e *Estimator) ServedDecodeOnly(name string, d Decode, took time.Duration) {
	e.learn(name, d.Address, d.note, func(l *lines) { l.decodeOnly.learn(d.Queued+d.Tokens, took.Seconds()) })
}

func (d *Decode) note(m *model) {
	m.queued.learn(d.Queued)
	m.running.learn(d.Running)
}

// learn calls note with a model, and add with the lines of the model and of one of its instances.
func (e *Estimator) learn(name, address string, note func(*model), add func(*lines)) {
	e.mu.Lock()
	defer e.mu.Unlock()
	m := e.model(name)
	note(m)
	add(&m.lines)
	l := m.instances[address]
	if l == nil {
		if len(m.instances) >= maxInstances {
			clear(m.instances) // the lines of the model itself stay
		}
		l = new(lines)
		m.instances[address] = l
	}
	add(l)
}

// model returns the estimates of a model. The caller holds the lock.
func (e *Estimator) model(name string) *model {
	m := e.models[name]
	if m == nil {
		if now := time.Now(); now.Sub(e.swept) >= keepUnused {
			e.swept = now
			e.sweep()
		}
		m = &model{instances: map[string]*lines{}}
		e.models[name] = m
	}
	m.used = true
	return m
}

// sweep removes the models that were not used since the last call: new adapters may appear every day. The
// caller holds the lock.
func (e *Estimator) sweep() {
	if e.models == nil {
		e.models = map[string]*model{}
	}
	maps.DeleteFunc(e.models, func(_ string, m *model) bool {
		unused := !m.used
		m.used = false
		return unused
	})
}

// Decide decides before a decode instance is picked, from the recent average work of decode instances.
func (e *Estimator) Decide(name string, p Prefill, tokens float64) Decision {
	e.mu.Lock()
	defer e.mu.Unlock()
	m := e.model(name)
	m.decisions++
	d := Decode{Queued: m.queued.value, Running: m.running.value, Tokens: tokens}
	return m.decide(p, d, m.decisions)
}

// Confirm repeats a decision for decode-only, for the decode instance that was picked.
func (e *Estimator) Confirm(name string, was Decision, p Prefill, d Decode) Decision {
	e.mu.Lock()
	defer e.mu.Unlock()
	if d.Full {
		return Decision{Reason: Full}
	}
	m := e.model(name)
	is := was
	if was.Reason != bypass.Explore {
		is = m.decide(p, d, 1)
	}
	if c, ok := m.costs(p, d); ok && is.DecodeOnly {
		is.Stall = c.stall
	}
	return is
}

// decide makes a decision; its number determines whether it explores.
func (m *model) decide(p Prefill, d Decode, number uint64) Decision {
	c, ok := m.costs(p, d)
	if !ok {
		return Decision{Reason: Learning}
	}
	bucket := m.bucket(d)
	cost, better := c.better(*bucket)
	bearable := c.decodeOnly <= maxExploreCost*c.pair
	switch {
	case !c.decodeOnlyKnown: // assumes that decode is as fast as prefill, which may be wrong
		if number%learnDecodeOnlyEvery == 0 && bearable {
			return Decision{DecodeOnly: true, Reason: bypass.Explore}
		}
		return Decision{Reason: Learning}
	case number%exploreEvery == 0 && better && c.pair <= maxExploreCost*c.decodeOnly:
		return Decision{Reason: Refresh}
	case number%exploreEvery == 0 && !better && bearable:
		return Decision{DecodeOnly: true, Reason: bypass.Explore}
	}
	*bucket = better
	return c.decision(cost, better)
}

// bucket returns the last decision for prompts of about this length: whether decode-only was better.
func (m *model) bucket(d Decode) *bool {
	return &m.decodeOnly[int(math.Log2(max(d.Tokens, 1)))&63]
}

// better reports whether decode-only is better, and returns its cost with the margin in favor of the way that
// was better last.
func (c *costs) better(was bool) (cost float64, is bool) {
	if cost = c.decodeOnly * (1 + margin); was {
		cost = c.decodeOnly * (1 - margin)
	}
	return cost, cost < c.pair
}

func (c *costs) decision(cost float64, better bool) Decision {
	switch {
	case !better:
		return Decision{Reason: Faster}
	case cost < c.pair-c.queue:
		return Decision{DecodeOnly: true, Reason: bypass.SmallUncached, Stall: c.stall}
	default:
		return Decision{DecodeOnly: true, Reason: bypass.PrefillQueue, Stall: c.stall}
	}
}

// Explanation is a decision and the cost of both ways in seconds, including the wait of other streams. The
// costs are 0 while too little is known.
type Explanation struct {
	Decision
	PairCost, DecodeOnlyCost float64
}

// Explain returns the decision for a request, without side effects. It does not show whether the request
// would explore, which depends on the number of decisions.
func (e *Estimator) Explain(name string, p Prefill, d Decode) Explanation {
	e.mu.Lock()
	defer e.mu.Unlock()
	m := e.models[name]
	if m == nil {
		return Explanation{Decision: Decision{Reason: Learning}}
	}
	c, ok := m.costs(p, d)
	switch {
	case !ok:
		return Explanation{Decision: Decision{Reason: Learning}}
	case !c.decodeOnlyKnown:
		return Explanation{Decision{Reason: Learning}, c.pair, c.decodeOnly}
	}
	is := c.decision(c.better(*m.bucket(d)))
	if is.DecodeOnly && d.Full {
		is = Decision{Reason: Full}
	}
	return Explanation{is, c.pair, c.decodeOnly}
}

// costs has the cost of each way in seconds, for the request and for other streams.
type costs struct {
	pair, decodeOnly float64
	queue            float64 // the part of pair in prefill's queue
	stall            float64 // the part of decodeOnly for which other streams wait
	decodeOnlyKnown  bool    // there are samples of decode-only
}

// costs estimates both ways; false while too little is known. A prompt on a decode instance delays every
// running stream. While it is computed, in one chunk or in several, each step takes longer by its chunk, and
// all steps together by the time of the prompt. The stall is this time for each running stream, and counts
// like a wait for a first token. Requests that wait after the prompt at prefill are not counted.
func (m *model) costs(p Prefill, d Decode) (c costs, ok bool) {
	prefill := m.lineOf(p.Address, func(l *lines) *line { return &l.prefill })
	hand := m.lineOf(d.Address, func(l *lines) *line { return &l.handover })
	own := m.lineOf(d.Address, func(l *lines) *line { return &l.decodeOnly })
	if !prefill.known() || !hand.known() {
		return c, false
	}
	c.decodeOnlyKnown = own.known()
	if !c.decodeOnlyKnown {
		own = &m.prefill
	}
	_, each := prefill.parts()
	c.queue = each * p.Queued
	c.pair = prefill.at(p.Queued+p.Uncached) + hand.at(d.Tokens)
	_, each = own.parts()
	c.stall = d.Running * each * d.Tokens
	c.decodeOnly = own.at(d.Queued+d.Tokens) + c.stall
	return c, true
}

// lineOf returns the line of an instance, or the model's while that has too few samples.
func (m *model) lineOf(address string, of func(*lines) *line) *line {
	if l := m.instances[address]; l != nil && of(l).known() {
		return of(l)
	}
	return of(&m.lines)
}
