package sched

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/internal/sched/policy"
	"github.com/pdmesh/pdmesh/sim/testkit/members"
)

// The load that a leg adds to an instance is subtracted when the
// leg ends; its waiting tokens as soon as prefill has answered.
func TestTokensOfALeg(t *testing.T) {
	t.Parallel()
	src := &fixed{instance.NewSnapshot(1, []*instance.Instance{member(instance.Prefill, "p:1", "m"), member(instance.Decode, "d:1", "m")})}
	s := schedulerOf(src)
	pick := func(r Request) *Assignment {
		t.Helper()
		r.Prompt, r.Head = make([]byte, 3000), [][]byte{make([]byte, 1000)}
		a, err := s.Pick(r)
		require.NoError(t, err)
		return a
	}
	holds := func(a *Assignment, inFlight, waiting, held int64) {
		t.Helper()
		l := &a.counter.load
		if l.InFlight.Load() != inFlight || l.Waiting.Load() != waiting || l.Held.Load() != held {
			t.Errorf("%s: %d in flight, %d tokens waiting, %d held; want %d, %d, %d", a.Instance.Key, l.InFlight.Load(), l.Waiting.Load(), l.Held.Load(), inFlight, waiting, held)
		}
	}
	p := pick(Request{Role: instance.Prefill})
	holds(p, 1, 1000, 1000)
	p.Prefilled(2000, 0)
	holds(p, 1, 0, 1000)
	d := pick(Request{Role: instance.Decode, Partner: p})
	holds(d, 1, 0, 2000) // prefill has counted two bytes per token; decode has nothing to compute
	alone := pick(Request{Role: instance.Decode})
	holds(alone, 2, 2000, 4000)
	for _, a := range []*Assignment{p, d, alone, alone} {
		a.Done()
		a.Prefilled(0, 0)
	}
	holds(p, 0, 0, 0)
	holds(d, 0, 0, 0)
}

// Hits counts the tokens that prefill found in its cache, and those that the policy expected there.
func TestHits(t *testing.T) {
	t.Parallel()
	in := member(instance.Prefill, "p:1", "m")
	kind, err := policy.Find("prefix")
	require.NoError(t, err)
	s := New(Options{
		Source: &fixed{instance.NewSnapshot(1, []*instance.Instance{in})}, Health: healthy{},
		PairKey:  members.PairKey,
		Policies: map[instance.Role]policy.Kind{instance.Prefill: kind},
	})
	for turn := range 2 {
		a, err := s.Pick(Request{Role: instance.Prefill, Unpaired: true, Model: "m", Prompt: make([]byte, 4096)})
		require.NoError(t, err)
		if want := turn * 1024; a.Cached != want || a.Tokens != 1024 {
			t.Errorf("turn %d: %d of %d tokens are cached, want %d", turn, a.Cached, a.Tokens, want)
		}
		a.Prefilled(1024, 900*turn)
		a.Prefilled(0, 0) // an answer without these numbers
		a.Done()
	}
	s.Loads.Hits(func(k instance.Key, h Hits) {
		assert.True(t, k == in.Key && h == (Hits{Asked: 2048, Expected: 1024, Found: 900}), "%s: %+v", k, h)
	})
}

// A prompt that is not text does not change the ratio of bytes to tokens.
func TestBytesPerToken_TextOnly(t *testing.T) {
	t.Parallel()
	var r ratio
	for _, odd := range [][2]int{{1 << 20, 1000}, {4000, 1 << 20}, {100, 50}} {
		if r.learn(odd[0], odd[1]); r.tokens(4000) != 1000 {
			t.Errorf("after %v a token has %g bytes", odd, r.value())
		}
	}
	if r.learn(4000, 2000); r.tokens(4000) != 2000 {
		t.Errorf("a token has %g bytes", r.value())
	}
}
