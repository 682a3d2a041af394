package policy

import (
	"sync"
	"time"

	"github.com/pdmesh/pdmesh/internal/prefix"
)

// prefixCache sends a prompt to where most of it has been computed before, as far as the
// requests of this proxy tell, unless so much waits there that another one would be done
// earlier. It needs nothing of the engines.
//
// Among instances that would be done at about the same time the text decides: several
// proxies agree about it without a word. Beside that they tell each other of the prompts
// that they have placed, so that a chat's next turn finds its cache whichever of them gets
// it.
type prefixCache struct {
	now    func() time.Time
	chains sync.Pool // of *prefix.Chain

	mu      sync.Mutex // guards all below; never held for more than some microseconds
	index   *prefix.Index
	targets targets
	balance balance
	longest []int  // borders that each target knows of the prompt
	exact   *exact // what engines say, nil: they are not listened to

	placements *prefix.Placements // nil: other proxies tell nothing
	heard      uint64             // of the placements
	// capacity is how many bytes of text each target holds, by what was noted last; 0
	// where that is not known.
	capacity []int
}

// prefixEntries bounds what is remembered for one model, to some 20 MiB.
const prefixEntries = 1 << 19

func newPrefix(o Options) Policy { return newPrefixCache(&o) }

func newPrefixCache(o *Options) *prefixCache {
	p := &prefixCache{now: o.now, index: prefix.NewIndex(prefixEntries), balance: newBalance(o), placements: o.Placements}
	p.targets.index = p.index
	p.chains.New = func() any { return new(prefix.Chain) }
	if o.Memory != nil {
		*o.Memory = Memory{All: p.remembered, Of: p.rememberedOf}
	}
	return p
}

// remembered is all that is in the index.
func (p *prefixCache) remembered() Remembered {
	p.mu.Lock()
	defer p.mu.Unlock()
	r := Remembered{Entries: p.index.Borders()}
	for _, n := range p.targets.of {
		r.Text += p.index.Bytes(n.number)
	}
	return r
}

// rememberedOf is what is in the index of one candidate.
func (p *prefixCache) rememberedOf(hash uint64) Remembered {
	p.mu.Lock()
	defer p.mu.Unlock()
	if n := p.targets.of[hash]; n != nil {
		return Remembered{Entries: p.index.Held(n.number), Text: p.index.Bytes(n.number)}
	}
	return Remembered{}
}

// Choose implements Policy.
func (p *prefixCache) Choose(c Candidates, r Request) (at, cached int) {
	chain, _ := p.chains.Get().(*prefix.Chain)
	chain.Start(r.Model)
	for _, h := range r.Head {
		chain.Add(h)
	}
	chain.Add(r.Prompt)
	defer p.chains.Put(chain)
	if chain.Len() == 0 {
		return -1, 0 // hardly any work, and nothing that could be found again
	}
	now := p.now()
	p.mu.Lock()
	defer p.mu.Unlock()
	numbers, changed := p.targets.numbers(&c, now)
	p.longest = grown(p.longest, p.targets.most)
	own := p.index.Look(chain, p.longest)
	others := p.placements.Others()
	if others {
		p.hear(r.Model)
		p.index.Deepest(chain, p.longest)
	}
	perByte := float64(r.Tokens) / float64(max(chain.Total(), 1))
	if changed {
		p.balance.level()
	}
	p.balance.begin(now, p.targets.most, r.Tentative != nil)
	if p.exact != nil {
		p.exact.look(&c, chain, r.Tokens, r.Tentative != nil)
	}
	most := 0
	for i := range c.Len() {
		n := numbers[c.Index(i)]
		expected := 0
		if known := p.longest[n]; known > 0 { // of most candidates nothing is
			most = max(most, known)
			expected = int(float64(chain.End(known)) * perByte)
		}
		if p.exact != nil {
			expected = min(p.exact.correct(i, expected), r.Tokens)
		}
		p.balance.add(n, expected)
	}
	at, cached = p.balance.choose(&c, r.Tokens, uint64(chain.Key(own)), others || p.placements == nil, r.Explanation)
	if p.exact != nil {
		p.exact.lesson(r.Lesson, &p.mu, chain, most > own)
	}
	is := placement{chain: chain, model: r.Model, hash: c.At(at).Hash, tokens: r.Tokens - cached, told: others}
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

// placement is a prompt that goes to a target.
type placement struct {
	chain    *prefix.Chain
	model    string
	hash     uint64 // of the target
	tokens   int    // that it has to compute
	bytes    int    // the same in text
	capacity int    // of the target, in bytes of text; 0 where it is not known
	told     bool   // other proxies should hear of it
}

// note notes that a prompt goes to a target.
func (p *prefixCache) note(number int, is *placement) {
	p.balance.gave(number, is.tokens)
	p.capacity = grownTo(p.capacity, number)
	p.capacity[number] = is.capacity
	p.index.Note(number, is.chain, is.capacity)
	if !is.told {
		return
	}
	if placed, ok := is.chain.Place(prefix.ModelHash(is.model), is.hash, is.bytes); ok {
		p.placements.Tell(placed)
	}
}

// hear takes in what other proxies have sent where.
func (p *prefixCache) hear(model string) {
	var news []prefix.Placed
	news, p.heard = p.placements.Since(p.heard, prefix.ModelHash(model))
	for i := range news {
		is := p.targets.of[news[i].Target]
		if is == nil {
			continue // this proxy does not know it yet, or not any more
		}
		p.capacity = grownTo(p.capacity, is.number)
		p.index.Hear(is.number, &news[i], p.capacity[is.number])
	}
}

// noteLater has a choice noted when it is confirmed, if the chosen one is known by then
// still.
func (p *prefixCache) noteLater(t *Tentative, place placement) {
	place.chain = place.chain.Clone()
	seen := p.exact != nil && p.exact.seen
	t.note = func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		is := p.targets.of[place.hash]
		if is == nil {
			return
		}
		if p.exact != nil {
			p.exact.used(place.chain, seen)
		}
		p.balance.begin(p.now(), p.targets.most, false)
		p.note(is.number, &place)
	}
}

// grown gives a slice of this length, the same one if it is long enough.
func grown(s []int, n int) []int {
	if cap(s) < n {
		return make([]int, n+n/2)[:n]
	}
	return s[:n]
}

// grownTo gives a slice with a place at this index, the same one if it has it.
func grownTo(s []int, at int) []int {
	for len(s) <= at {
		s = append(s, 0)
	}
	return s
}
