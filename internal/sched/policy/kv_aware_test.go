package policy

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pdmesh/pdmesh/internal/kvcache/kvevents"
	"github.com/pdmesh/pdmesh/internal/kvcache/kvindex"
)

// engine publishes the events of one instance: blocks of four tokens, each token a byte.
type engine struct {
	index *kvindex.Index
	at    kvindex.Target
}

const blockOf = 4

func tokensOf(text []byte) []uint32 {
	ids := make([]uint32, len(text))
	for i, b := range text {
		ids[i] = uint32(b)
	}
	return ids
}

// stores announces all blocks of a text.
func (e engine) stores(text []byte) {
	ids := tokensOf(text)
	names := make([]kvevents.Hash, len(ids)/blockOf)
	for i := range names {
		names[i] = name(text[:(i+1)*blockOf])
	}
	e.says(kvevents.Event{Kind: kvevents.Stored, Hashes: names, Tokens: ids[:len(names)*blockOf], BlockSize: blockOf})
}

// evicts publishes the eviction of all but the first blocks of a text.
func (e engine) evicts(text []byte, kept int) {
	var names []kvevents.Hash
	for i := kept; i < len(text)/blockOf; i++ {
		names = append(names, name(text[:(i+1)*blockOf]))
	}
	e.says(kvevents.Event{Kind: kvevents.Removed, Hashes: names})
}

func (e engine) says(event kvevents.Event) {
	event.LoRAID, event.Group = kvevents.Absent, kvevents.Absent
	e.index.Apply(e.at, &kvevents.Batch{Events: []kvevents.Event{event}})
}

// name returns the engine's name of a block, which is opaque to the proxy.
func name(text []byte) kvevents.Hash { return kvevents.Hash(hashText(string(text)) ^ 0x5555) }

// follow returns a policy that knows the blocks of the candidates, and their engines.
func follow(t *testing.T, list []Candidate) (Policy, []Candidate, []engine) {
	t.Helper()
	x := kvindex.New(nil)
	engines := make([]engine, len(list))
	for i := range list {
		engines[i] = engine{x, kvindex.Target{Address: list[i].Instance.Address}}
		x.Apply(engines[i].at, &kvevents.Batch{})
		x.SetLive(engines[i].at, true)
	}
	return newKVAware(Options{Caches: x}), list, engines
}

// turn makes a choice, and passes the policy the tokens that it wants to learn.
func turn(p Policy, list []Candidate, text []byte) (at, cached int, asked bool) {
	r := asking(text)
	var l Lesson
	r.Tokens, r.Lesson = len(text), &l
	at, cached = p.Choose(All(list), r)
	if l.Wanted() {
		l.Learn(tokensOf(text))
	}
	return at, cached, l.Wanted()
}

// Evicted tokens are no longer expected in the cache; tokens computed for other proxies are.
func TestKVAware_FollowsEngineEvents(t *testing.T) {
	t.Parallel()
	p, list, engines := follow(t, fleet(1, 1, 1))
	other := prompt(99, 6000)
	engines[0].stores(other) // so that its block size is known
	text := prompt(1, 8000)
	var home int
	for i, n := range []int{2000, 4000, 6000, 8000} {
		at, _, _ := turn(p, list, text[:n])
		if i == 0 {
			home = at
		} else if at != home {
			t.Fatalf("turn %d went to %d, the first to %d", i+1, at, home)
		}
		engines[at].stores(text[:n])
	}
	_, cached, _ := turn(p, list, text)
	require.GreaterOrEqual(t, cached, 7000, "%d tokens are expected at home", cached)
	// It evicts all but 100 blocks; another proxy sends the text to another instance.
	engines[home].evicts(text, 100)
	away := (home + 1) % 3
	engines[away].stores(text)
	at, cached, _ := turn(p, list, text)
	assert.True(t, at == away && cached >= 3800, "went to %d for %d tokens, want %d", at, cached, away)
	engines[away].evicts(text, 600)
	if at, cached, _ := turn(p, list, text); at != away || cached != 2400 {
		t.Errorf("went to %d for %d tokens, want %d for 2400", at, cached, away)
	}
}

// Tokens are requested only for repeated prompts, and not in every turn of a chat.
func TestKVAware_FewQueries(t *testing.T) {
	t.Parallel()
	p, list, engines := follow(t, fleet(1, 1))
	if _, _, asked := turn(p, list, prompt(1, 4000)); asked {
		t.Error("asked although no engine publishes events")
	}
	engines[0].stores(prompt(2, 400))
	system := prompt(3, 2000)
	asks := 0
	for n := range 20 {
		if _, _, asked := turn(p, list, bytes.Join([][]byte{system, prompt(10+n, 2000)}, nil)); asked && n > 1 {
			asks++
		}
	}
	assert.Equal(t, 0, asks, "asked for, of 18 prompts that only begin alike")
	chat, asks := prompt(4, 100_000), 0
	const turns = 90
	for n := range turns {
		if _, _, asked := turn(p, list, chat[:10_000+1000*n]); asked {
			asks++
		}
	}
	assert.True(t, asks != 0 && asks <= turns/2, "%d of %d turns were asked for", asks, turns)
}

// If block names depend on more than the tokens, no block is
// found. That does not mean that the caches are empty.
func TestKVAware_UnknownBlockHashes(t *testing.T) {
	t.Parallel()
	p, list, engines := follow(t, fleet(1, 1))
	engines[0].stores(prompt(2, 400))
	text := prompt(1, 8000)
	for _, n := range []int{2000, 4000, 6000} {
		turn(p, list, text[:n])
	}
	if _, cached, _ := turn(p, list, text); cached < 5500 {
		t.Errorf("%d tokens are expected", cached)
	}
}

// Blocks of the base model are not those of its adapters. An adapter is known from its first block; names
// learned before are not used.
func TestKVAware_Adapter(t *testing.T) {
	t.Parallel()
	p, list, engines := follow(t, fleet(1))
	text := prompt(1, 8000)
	engines[0].stores(text[:400])
	stored := func(hash kvevents.Hash, adapter string) {
		engines[0].says(kvevents.Event{
			Kind: kvevents.Stored, Hashes: []kvevents.Hash{hash}, Tokens: tokensOf(text[:blockOf]), BlockSize: blockOf, LoRA: []byte(adapter),
		})
	}
	stored(1, "adapter")
	for _, model := range []string{"adapter", "base", "late"} {
		cached, asked := 0, false
		for _, n := range []int{2000, 4000, 6000, 8000} {
			if model == "late" && n == 8000 {
				assert.True(t, asked, "no tokens requested before the adapter is known")
				asked = false
				stored(2, model)
			}
			r := asking(text[:n])
			var l Lesson
			r.Model, r.Tokens, r.Lesson = model, n, &l
			_, cached = p.Choose(All(list), r)
			if asked = asked || l.Wanted(); l.Wanted() {
				l.Learn(tokensOf(text[:n]))
			}
		}
		if model != "base" && (cached < 5500 || asked) || model == "base" && (cached != 400 || !asked) {
			t.Errorf("%s: %d tokens are expected; tokens requested: %t", model, cached, asked)
		}
	}
}

// If some events of an engine were missed, it may have blocks that are not found.
func TestKVAware_IncompleteIndex(t *testing.T) {
	t.Parallel()
	p, list, engines := follow(t, fleet(1))
	text, other := prompt(1, 8000), prompt(2, 8000)
	engines[0].stores(prompt(3, 400))
	for _, n := range []int{2000, 4000, 6000} {
		turn(p, list, text[:n])
		engines[0].stores(text[:n])
	}
	engines[0].evicts(text, 100)
	if _, cached, _ := turn(p, list, text); cached != 400 {
		t.Fatalf("%d tokens are expected, want the 400 that are left", cached)
	}
	ids := tokensOf(other[:blockOf])
	engines[0].says(kvevents.Event{
		Kind: kvevents.Stored, Hashes: []kvevents.Hash{1}, Parent: 2, HasParent: true, Tokens: ids, BlockSize: blockOf,
	})
	if _, cached, _ := turn(p, list, text); cached < 5500 {
		t.Errorf("%d tokens are expected of an engine of which blocks are not known", cached)
	}
}

// Block names are useless if an engine comes back with another block size.
func TestKVAware_BlockSizeChange(t *testing.T) {
	t.Parallel()
	p, list, engines := follow(t, fleet(1))
	text := prompt(1, 8000)
	for _, n := range []int{2000, 4000, 6000, 7000} {
		engines[0].stores(text[:n])
		turn(p, list, text[:n])
	}
	engines[0].index.Drop(engines[0].at)
	ids := tokensOf(text[:400])
	engines[0].index.SetLive(engines[0].at, true)
	engines[0].says(kvevents.Event{Kind: kvevents.Stored, Hashes: []kvevents.Hash{1}, Tokens: ids[:8], BlockSize: 8})
	again := fleet(1)
	if _, cached, _ := turn(p, again, text); cached < 5500 {
		t.Errorf("%d tokens are expected by names of blocks of another size", cached)
	}
}

// Events of an engine that comes back with another block size are
// used, even if it has stored no block when the candidates change.
func TestKVAware_BlockSizeAfterList(t *testing.T) {
	t.Parallel()
	p, list, engines := follow(t, fleet(1))
	text := prompt(1, 8000)
	for _, n := range []int{2000, 4000, 6000, 8000} {
		engines[0].stores(text[:n])
		turn(p, list, text[:n])
	}
	engines[0].index.Drop(engines[0].at)
	engines[0].index.SetLive(engines[0].at, true)
	again := fleet(1)
	turn(p, again, text)
	const size, kept = 8, 50
	var names []kvevents.Hash
	for i := size; i <= len(text); i += size {
		names = append(names, name(text[:i]))
	}
	engines[0].says(kvevents.Event{Kind: kvevents.Stored, Hashes: names, Tokens: tokensOf(text), BlockSize: size})
	for range 3 { // its tokens are learned
		turn(p, again, text)
	}
	engines[0].says(kvevents.Event{Kind: kvevents.Removed, Hashes: names[kept:]})
	if _, cached, _ := turn(p, again, text); cached != kept*size {
		t.Errorf("%d tokens are expected, want the %d that are left", cached, kept*size)
	}
}

// The tokens of a request are an estimate. Its cached blocks are
// counted in the same unit, however wrong that is.
func TestKVAware_UsesTokenEstimate(t *testing.T) {
	t.Parallel()
	p, list, engines := follow(t, fleet(1, 1))
	engines[0].stores(prompt(99, 6000)) // so that its block size is known
	text := prompt(1, 8000)
	for _, n := range []int{2000, 4000, 6000, 8000} {
		at, _, _ := turn(p, list, text[:n])
		engines[at].stores(text[:n])
	}
	for n := range list {
		engines[n].evicts(text, 2000/blockOf)
	}
	for _, wrong := range []int{1, 2, 4} {
		r := asking(text)
		r.Tokens = len(text) * wrong // a byte is a token here
		if _, cached := p.Choose(All(list), r); cached < 2000*wrong-wrong || cached > 2000*wrong {
			t.Errorf("%d times too many: %d of %d tokens are cached, want %d", wrong, cached, r.Tokens, 2000*wrong)
		}
	}
}
