package policy

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/internal/kvcache/prefix"
)

// prompt returns a text of size bytes that is unique to n.
func prompt(n, size int) []byte {
	rng := rand.New(rand.NewPCG(uint64(n), 9))
	b := make([]byte, size)
	for i := range b {
		b[i] = byte('a' + rng.IntN(26))
	}
	return b
}

// asking returns a request with a prompt of these parts.
func asking(parts ...[]byte) Request {
	p := bytes.Join(parts, nil)
	return Request{Role: instance.Prefill, Model: "m", Prompt: p, Tokens: len(p) / 4}
}

func TestPrefix_FindsComputed(t *testing.T) {
	t.Parallel()
	list := fleet(1, 1, 1, 1)
	p := newPrefix(Options{})
	system := prompt(1, 600)
	spread := map[int]int{}
	for n := range 40 {
		turn := [][]byte{system, prompt(100+n, 3000)}
		first, cached := p.Choose(All(list), asking(turn...))
		assert.False(t, n == 0 && cached != 0, "%d tokens of the first prompt are cached", cached)
		spread[first]++
		for more := range 3 {
			turn = append(turn, prompt(1000*n+more, 700))
			at, cached := p.Choose(All(list), asking(turn...))
			require.Equal(t, first, at, "turn %d of chat %d went to %d, the first to %d", more+2, n, at, first)
			if want := (3600 + 700*more) / 4; cached > want || cached < want-64 {
				t.Errorf("turn %d: %d tokens are cached, want %d or a border less", more+2, cached, want)
			}
		}
	}
	for i := range list {
		assert.GreaterOrEqual(t, spread[i], 6, "chats are spread %v", spread)
	}
}

// Waiting work on an instance can outweigh its cache.
func TestPrefix_LeavesBusyInstance(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		weight  float64
		waiting int64
		stays   bool
	}{{1, 900, true}, {1, 1300, false}, {10, 9_000, true}, {10, 13_000, false}, {0, 9_000, true}, {0, 13_000, false}} {
		list := fleet(1, 1)
		p := newPrefix(Options{CacheWeight: tc.weight})
		r := asking(prompt(1, 4096))
		home, _ := p.Choose(All(list), r)
		list[home].Load.Waiting.Store(tc.waiting)
		if at, _ := p.Choose(All(list), r); (at == home) != tc.stays {
			t.Errorf("weight %g, %d tokens wait: stays %t", tc.weight, tc.waiting, at == home)
		}
	}
}

// A new incarnation of an instance has an empty cache. An instance
// that was absent for a short time still has its cache.
func TestPrefix_NewIncarnationIsEmpty(t *testing.T) {
	t.Parallel()
	now := time.Unix(1000, 0)
	p := newPrefix(Options{Now: func() time.Time { return now }})
	r := asking(prompt(1, 4096))
	list := fleet(1, 1, 1)
	home, _ := p.Choose(All(list), r)
	without := append([]Candidate{}, list[:home]...)
	without = append(without, list[home+1:]...)
	if _, cached := p.Choose(All(without), asking(prompt(2, 4096))); cached != 0 {
		t.Errorf("%d tokens of a new prompt", cached)
	}
	now = now.Add(remembered - time.Second)
	again := fleet(1, 1, 1)
	if at, cached := p.Choose(All(again), r); at != home || cached != 1024 {
		t.Errorf("back after a while: %d with %d tokens, want %d", at, cached, home)
	}
	other := fleet(1, 1, 1)
	is := *other[home].Instance
	is.Record.ID = "another life"
	other[home].Instance = &is
	if _, cached := p.Choose(All(other), r); cached != 0 {
		t.Errorf("%d tokens in the cache of an engine that has just started", cached)
	}
	// The same applies if its metrics show a restart and its record has no id.
	first, second := &Engine{StartedAt: time.Unix(1, 0)}, &Engine{StartedAt: time.Unix(2, 0)}
	for _, list := range [][]Candidate{other, again} {
		id := list[home].Instance.Record.ID
		p.Choose(All(list), r)
		for i, report := range []*Engine{{}, first, first, nil, second, second} {
			list[home].Load.Engine.Store(report)
			want := 1024
			if i == 4 && id == "" {
				want = 0
			}
			if _, cached := p.Choose(All(list), r); cached != want {
				t.Errorf("id %q, report %d: %d tokens in the cache, want %d", id, i, cached, want)
			}
		}
	}
	// An instance that is absent for longer is forgotten.
	p = newPrefix(Options{Now: func() time.Time { return now }})
	p.Choose(All(list[:1]), r)
	p.Choose(All(list[1:]), asking(prompt(3, 4096)))
	now = now.Add(remembered + time.Second)
	p.Choose(All(fleet(1, 1, 1)[1:2]), asking(prompt(4, 4096)))
	if _, cached := p.Choose(All(fleet(1)), r); cached != 0 {
		t.Errorf("%d tokens of one that was away for long", cached)
	}
}

// Proxies that publish their placements to each other find the instance of a chat
// for its next turn, and predict its cached tokens, as a single proxy would.
func TestPrefix_SeveralProxies(t *testing.T) {
	t.Parallel()
	proxies, placements := make([]Policy, 4), make([]*prefix.Placements, 4)
	for i := range proxies {
		placements[i] = new(prefix.Placements)
		placements[i].SetOthers(true)
		proxies[i] = newPrefix(Options{Placements: placements[i]})
	}
	publish := func(from int) {
		raw := placements[from].Take(1 << 10)
		for i := range placements {
			if i == from {
				continue
			}
			require.NoError(t, placements[i].Read(raw))
		}
	}
	list := fleet(1, 1, 1, 1, 1, 1, 1, 1)
	system := prompt(1, 4000)
	kept, turns := 0, 0
	for n := range 200 {
		turn := [][]byte{system, prompt(n, 5000)}
		home, _ := proxies[n%4].Choose(All(list), asking(turn...))
		publish(n % 4)
		for more := range 3 {
			turn = append(turn, prompt(1000*n+more, 900))
			r := asking(turn...)
			at, cached := proxies[(n+more+1)%4].Choose(All(list), r)
			publish((n + more + 1) % 4)
			if turns++; at == home && cached >= r.Tokens*3/4 {
				kept++
			}
		}
	}
	assert.GreaterOrEqual(t, kept, turns, "%d of %d turns went where the chat began", kept, turns)
}

// The tools and the cache salt precede the messages.
func TestPrefix_ToolsAndSalt(t *testing.T) {
	t.Parallel()
	p, list := newPrefix(Options{}), fleet(1, 1)
	r := asking(prompt(1, 4096))
	r.Head = [][]byte{prompt(2, 512), []byte(`"salt"`)}
	p.Choose(All(list), r)
	if _, cached := p.Choose(All(list), r); cached == 0 {
		t.Error("the same request is not known")
	}
	r.Head[1] = []byte(`"other"`)
	if _, cached := p.Choose(All(list), r); cached > 512/4 {
		t.Errorf("%d tokens are known of a prompt with another salt", cached)
	}
	r.Model = "other"
	if _, cached := p.Choose(All(list), r); cached != 0 {
		t.Errorf("%d tokens are known of another model's prompt", cached)
	}
}

func TestPrefix_ShortPrompts(t *testing.T) {
	t.Parallel()
	if at, _ := newPrefix(Options{}).Choose(All(fleet(1, 1)), asking([]byte("hello"))); at != -1 {
		t.Errorf("chose %d", at)
	}
}

// Proxies without placements of each other choose the same instance for a session's first prompt, and for
// a prompt that shares nothing with earlier ones. A cached prompt and waiting work take precedence.
func TestPrefixBreaksTiesBySession(t *testing.T) {
	t.Parallel()
	list := fleet(1, 1, 1, 1)
	spread := map[int]int{}
	for n := range 40 {
		asks := func(p Policy, parts ...[]byte) int {
			r := asking(parts...)
			r.Session = fmt.Sprint("session-", n)
			at, _ := p.Choose(All(list), r)
			return at
		}
		a, b := newPrefix(Options{}), newPrefix(Options{})
		home := asks(a, prompt(n, 3000))
		spread[home]++
		bound, _ := newSession(Options{}).Choose(All(list), Request{Session: fmt.Sprint("session-", n)})
		if other := asks(b, prompt(1000+n, 3000)); other != home || bound != home {
			t.Errorf("session %d is at %d, at %d by the other proxy, and at %d by the policy session", n, home, other, bound)
		}
		list[home].Load.Waiting.Add(20000)
		if at := asks(newPrefix(Options{}), prompt(2000+n, 3000)); at == home {
			t.Errorf("session %d waits at its instance", n)
		}
		list[home].Load.Waiting.Add(-20000)
		other := newPrefix(Options{})
		placed, _ := other.Choose(All(list), asking(prompt(3000+n, 3000)))
		assert.Equal(t, placed, asks(other, prompt(3000+n, 3000)), "session %d is not at the cache of its prompt", n)
	}
	for i := range list {
		assert.GreaterOrEqual(t, spread[i], 4, "sessions are spread %v", spread)
	}
}
