package policy

import (
	"slices"
	"sync"
	"time"

	"github.com/pdmesh/pdmesh/internal/kvcache/indexmem"
	"github.com/pdmesh/pdmesh/internal/kvcache/prefix"
)

// prefixCache sends a prompt to the instance that has computed most of it before, judging by this proxy's
// requests. It chooses another instance if so much work waits there that the other one would finish earlier.
// It needs no data from the engines.
//
// Ties within the slack are broken by a hash of the session, or of the prompt if the request names no
// session, so that independent proxies make the same choice. Proxies also publish the prompts that they have
// placed, so that the next turn of a chat finds its cache through any proxy.
type prefixCache struct {
	now    func() time.Time
	chains sync.Pool // of *prefix.Chain

	memory *indexmem.Budget

	mu      sync.Mutex // guards all below; held for a few microseconds at most
	closed  bool       // nothing is recorded any more
	index   *prefix.Index
	targets targets
	balance balance
	longest []int  // number of the prompt's borders that each target has; see prefix.Index
	exact   *exact // cache contents by KV events; nil: not used

	placements *prefix.Placements // nil: placements are not exchanged
	received   uint64             // number of placements read
}

func newPrefix(o Options) Policy { return newPrefixCache(&o) }

func newPrefixCache(o *Options) *prefixCache {
	budget := o.Budget
	if budget == nil {
		budget = indexmem.New(0)
	}
	p := &prefixCache{now: o.now, memory: budget, index: prefix.NewIndex(budget), balance: newBalance(o), placements: o.Placements}
	budget.Register(indexmem.Prompts, p)
	p.targets.index = p.index
	p.chains.New = func() any { return new(prefix.Chain) }
	return p
}

// Oldest implements indexmem.Evictor.
func (p *prefixCache) Oldest() (tick uint32, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	tick, ok = p.index.Oldest()
	if p.exact != nil {
		if named, some := p.exact.names.Oldest(); some && (!ok || indexmem.Before(named, tick)) {
			return named, true
		}
	}
	return tick, ok
}

// Evict implements indexmem.Evictor.
func (p *prefixCache) Evict(until uint32, bytes int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	bytes -= p.index.Evict(until, bytes)
	if p.exact != nil && bytes > 0 {
		p.exact.names.Evict(until, bytes)
	}
}

// Close implements Recorder. Nothing is recorded from then on.
func (p *prefixCache) Close() {
	p.mu.Lock()
	p.closed = true
	for _, n := range p.targets.of {
		p.index.Clear(n.number)
	}
	if p.exact != nil {
		p.exact.closed = true
		p.exact.names.Clear()
	}
	p.mu.Unlock()
	p.memory.Unregister(indexmem.Prompts, p)
}

// Remembered implements Recorder. The memory includes that of the names of blocks.
func (p *prefixCache) Remembered() Remembered {
	p.mu.Lock()
	defer p.mu.Unlock()
	r := Remembered{Entries: p.index.Borders(), Memory: p.index.Memory()}
	if p.exact != nil {
		r.Memory += p.exact.names.Memory()
	}
	for _, n := range p.targets.of {
		r.Text += p.index.Bytes(n.number)
	}
	return r
}

// RememberedOf implements Recorder.
func (p *prefixCache) RememberedOf(hash uint64) Remembered {
	p.mu.Lock()
	defer p.mu.Unlock()
	if n := p.targets.of[hash]; n != nil {
		return Remembered{Entries: p.index.Held(n.number), Text: p.index.Bytes(n.number)}
	}
	return Remembered{}
}

// Choose implements Policy.
func (p *prefixCache) Choose(c Candidates, r Request) (at, cached int) {
	at, cached = p.choose(c, r)
	p.memory.Enforce()
	return at, cached
}

func (p *prefixCache) choose(c Candidates, r Request) (at, cached int) {
	chain, _ := p.chains.Get().(*prefix.Chain)
	chain.Start(r.Model)
	for _, h := range r.Head {
		chain.Add(h)
	}
	chain.Add(r.Prompt)
	defer p.chains.Put(chain)
	if chain.Len() == 0 {
		return -1, 0 // hardly any work, and too short to be recorded
	}
	now := p.now()
	p.mu.Lock()
	defer p.mu.Unlock()
	numbers, changed := p.targets.numbers(&c, now)
	p.longest = slices.Grow(p.longest[:0], p.targets.most)[:p.targets.most]
	own := p.index.Lookup(chain, p.longest)
	others := p.placements.Others()
	if others {
		p.addRemote(r.Model)
		p.index.Deepest(chain, p.longest)
	}
	perByte := float64(r.Tokens) / float64(max(chain.Total(), 1))
	if changed {
		p.balance.level()
	}
	p.balance.begin(now, p.targets.most, r.Tentative != nil)
	if p.exact != nil {
		p.exact.lookup(&c, chain, r.Model, r.Tokens, r.Tentative != nil)
	}
	most := 0
	for i := range c.Len() {
		n := numbers[c.Index(i)]
		expected := 0
		if known := p.longest[n]; known > 0 { // most candidates have nothing
			most = max(most, known)
			expected = int(float64(chain.End(known)) * perByte)
		}
		if p.exact != nil {
			expected = min(p.exact.correct(i, expected), r.Tokens)
		}
		p.balance.add(n, expected)
	}
	key := uint64(chain.Key(own))
	if r.Session != "" { // the same key as in the policy session
		key = mix(hashText(r.Session))
	}
	at, cached = p.balance.choose(&c, r.Tokens, key, others || p.placements == nil, r.Explanation)
	if p.targets.restarted(c.At(at)) { // without an agent the incarnation does not change
		p.index.Clear(numbers[c.Index(at)])
		cached = 0
	}
	if p.exact != nil {
		p.exact.lesson(r.Lesson, &p.mu, chain, most > own)
	}
	is := placement{chain: chain, model: r.Model, hash: c.At(at).Hash, tokens: r.Tokens - cached, publish: others, assigned: r.Assigned}
	if perByte > 0 {
		is.bytes = int(float64(is.tokens) / perByte)
		is.capacity = int(c.At(at).Load.Capacity.Load() / perByte)
	}
	if r.Tentative != nil {
		p.noteLater(r.Tentative, is)
		return at, cached
	}
	p.note(numbers[c.Index(at)], &is)
	return at, cached
}

// placement is a prompt that is sent to a target.
type placement struct {
	chain    *prefix.Chain
	model    string
	hash     uint64 // of the target
	tokens   int    // to be computed by it
	bytes    int    // the same in bytes of text
	capacity int    // of the target, in bytes of text; 0 if unknown
	publish  bool   // to other proxies
	assigned *Assigned
}

// Assigned is the work that a policy has recorded for the chosen candidate. The zero value has none.
type Assigned struct {
	policy *prefixCache
	hash   uint64 // of the candidate
	tokens int
}

// Undo removes the work from the record: the candidate has refused the prompt.
func (a *Assigned) Undo() {
	if a.policy == nil {
		return
	}
	a.policy.mu.Lock()
	defer a.policy.mu.Unlock()
	if is := a.policy.targets.of[a.hash]; is != nil {
		work := &a.policy.balance.work[is.number]
		*work = max(0, *work-float64(a.tokens)) // the candidates may have changed, see level
	}
}

// note records that a prompt is sent to a target.
func (p *prefixCache) note(number int, is *placement) {
	p.balance.assigned(number, is.tokens)
	if is.assigned != nil {
		*is.assigned = Assigned{p, is.hash, is.tokens}
	}
	if !p.closed {
		p.index.Note(number, is.chain, is.capacity)
	}
	if !is.publish {
		return
	}
	if placed, ok := is.chain.Place(prefix.ModelHash(is.model), is.hash, is.bytes); ok {
		p.placements.Publish(placed)
	}
}

// addRemote adds the prompts of a model that other proxies have placed since the last call.
func (p *prefixCache) addRemote(model string) {
	var fresh []prefix.Placed
	fresh, p.received = p.placements.Since(p.received, prefix.ModelHash(model))
	for i := range fresh {
		is := p.targets.of[fresh[i].Target]
		if is == nil || p.closed {
			continue // this proxy does not know the target yet, or no longer
		}
		p.index.AddRemote(is.number, &fresh[i])
	}
}

// noteLater records the placement when the pick is confirmed, if the target is still known then.
func (p *prefixCache) noteLater(t *Tentative, place placement) {
	place.chain = place.chain.Clone()
	seen := p.exact != nil && p.exact.seen
	t.note = func() {
		defer p.memory.Enforce()
		p.mu.Lock()
		defer p.mu.Unlock()
		is := p.targets.of[place.hash]
		if is == nil {
			return
		}
		if p.exact != nil {
			p.exact.recordLookup(place.chain, seen)
		}
		p.balance.begin(p.now(), p.targets.most, false)
		p.note(is.number, &place)
	}
}
