package policy

import (
	"math/rand/v2"
	"reflect"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/sim/testkit/longform"
)

// history has a policy, candidates with changing load, and requests of continuing chats, all from one seed.
type history struct {
	policy  Policy
	list    []Candidate
	engines []engine
	system  []byte
	chats   [6][]byte
	now     time.Time
	rng     *rand.Rand
	step    int
}

func newHistory(t *testing.T, k Kind) *history {
	t.Helper()
	h := &history{list: fleet(1, 1, 1, 1), now: time.Unix(1000, 0), rng: rand.New(rand.NewPCG(5, 6))}
	_, _, h.engines = follow(t, h.list)
	h.system = prompt(1, 600)
	for i := range h.chats {
		h.chats[i] = prompt(10+i, 3100)
	}
	h.engines[1].stores(h.system)
	h.policy = k.New(Options{Rand: rand.New(rand.NewPCG(3, 4)).Float64, Now: func() time.Time { return h.now }, Caches: h.engines[0].index})
	return h
}

// choose makes a final choice: the policy learns, and the engine stores the prompt.
func (h *history) choose(c Candidates, r Request) (at, cached int) {
	var l Lesson
	r.Lesson = &l
	at, cached = h.policy.Choose(c, r)
	if r.Tentative != nil {
		r.Tentative.Confirm()
		r.Tentative.Confirm() // counts once
	}
	if l.Wanted() {
		l.Learn(tokensOf(r.Prompt))
	}
	if at >= 0 {
		h.engines[c.Index(at)].stores(r.Prompt)
		if h.rng.IntN(3) == 0 {
			h.engines[h.rng.IntN(4)].evicts(r.Prompt, 100)
		}
	}
	return at, cached
}

// next returns the next request and its candidates.
func (h *history) next() (Candidates, Request) {
	h.step++
	h.now = h.now.Add(time.Duration(h.rng.IntN(5000)) * time.Millisecond)
	for i := range h.list {
		h.list[i].Load.Waiting.Store(int64(h.rng.IntN(2000)))
		h.list[i].Load.InFlight.Store(int64(h.rng.IntN(4)))
	}
	chat := h.rng.IntN(6)
	r := asking(h.system, h.chats[chat][:1000+300*h.rng.IntN(8)])
	r.Tokens = len(r.Prompt)
	r.Role, r.Session = instance.Prefill, string(rune('a'+chat))
	if h.rng.IntN(3) == 0 {
		return some(h.list, true, 0, 2, 3), r
	}
	return All(h.list), r
}

// A tentative choice does not affect later ones. Unless the
// policy draws at random, it equals the final choice.
func TestTentativeChangesNothing(t *testing.T) {
	t.Parallel()
	for _, k := range kinds() {
		t.Run(k.Name, func(t *testing.T) {
			t.Parallel()
			var asked, plain []int
			for _, times := range []int{0, 3} {
				h := newHistory(t, k)
				for range longform.Count(40, 150) {
					c, r := h.next()
					foreseen := -1
					for range times {
						r.Tentative, r.Explanation = new(Tentative), new(Explanation)
						foreseen, _ = h.policy.Choose(c, r)
						h.now = h.now.Add(time.Second)
					}
					h.now = h.now.Add(time.Duration(3-times) * time.Second)
					scores := r.Explanation
					r.Tentative, r.Explanation = nil, nil
					at, cached := h.choose(c, r)
					if times == 0 {
						plain = append(plain, at, cached)
						continue
					}
					asked = append(asked, at, cached)
					require.False(t, !k.Draws && foreseen != at, "step %d: foreseen %d, then %d was chosen", h.step, foreseen, at)
					require.False(t, at >= 0 && len(scores.scores) == 0, "nothing is explained")
				}
			}
			if !reflect.DeepEqual(asked, plain) {
				t.Errorf("with questions between them\n%v, without\n%v", asked[:80], plain[:80])
			}
		})
	}
}

// A confirmed choice equals one without confirmation.
func TestConfirm_SameAsChoose(t *testing.T) {
	t.Parallel()
	for _, k := range kinds() {
		if k.Draws {
			continue
		}
		t.Run(k.Name, func(t *testing.T) {
			t.Parallel()
			var got [2][]int
			for i := range got {
				h := newHistory(t, k)
				for range longform.Count(40, 150) {
					c, r := h.next()
					if i == 1 {
						r.Tentative = new(Tentative)
					}
					at, cached := h.choose(c, r)
					got[i] = append(got[i], at, cached)
				}
			}
			if !reflect.DeepEqual(got[0], got[1]) {
				t.Errorf("chosen %v\nconfirmed %v", got[0][:40], got[1][:40])
			}
		})
	}
}

// A policy records nothing for candidates that it has forgotten.
func TestConfirm_RemovedInstance(t *testing.T) {
	t.Parallel()
	now := time.Unix(1000, 0)
	p := newPrefix(Options{Now: func() time.Time { return now }})
	r := asking(prompt(1, 4096))
	r.Tentative = new(Tentative)
	p.Choose(All(fleet(1)), r)
	other := fleet(1, 1)[1:]
	p.Choose(All(other), asking(prompt(2, 4096)))
	now = now.Add(2 * remembered)
	p.Choose(All(fleet(1, 1, 1)[2:]), asking(prompt(3, 4096)))
	r.Tentative.Confirm()
	r.Tentative = nil
	if _, cached := p.Choose(All(fleet(1)), r); cached != 0 {
		t.Errorf("%d tokens", cached)
	}
}
