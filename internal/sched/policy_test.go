package sched_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pdmesh/pdmesh/internal/connector"
	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/internal/openai"
	"github.com/pdmesh/pdmesh/internal/openai/request"
	"github.com/pdmesh/pdmesh/internal/sched"
	"github.com/pdmesh/pdmesh/internal/sched/policy"
	"github.com/pdmesh/pdmesh/sim/testkit/members"
)

// policyNamed returns a policy of the registry.
func policyNamed(tb testing.TB, name string) policy.Kind {
	tb.Helper()
	kind, err := policy.Find(name)
	require.NoError(tb, err)
	return kind
}

// chosenBy returns a scheduler with one policy for both roles and the same random numbers in every run.
func chosenBy(tb testing.TB, name string, health sched.Health, bind bool, list ...*instance.Instance) (*sched.Scheduler, *source) {
	tb.Helper()
	kind := policyNamed(tb, name)
	if health == nil {
		health = sick{}
	}
	src := &source{}
	src.set(list...)
	var mu sync.Mutex
	rng := rand.New(rand.NewPCG(11, 12))
	return sched.New(sched.Options{
		Source: src, Health: health, PairKey: members.PairKey,
		Policies:  map[instance.Role]policy.Kind{instance.Prefill: kind, instance.Decode: kind},
		NoBinding: !bind,
		Options: policy.Options{Rand: func() float64 {
			mu.Lock()
			defer mu.Unlock()
			return rng.Float64()
		}},
	}), src
}

func weighing(w int) func(*instance.Instance) {
	return func(in *instance.Instance) { in.Record.Weight = &w }
}

// eachPolicy runs a test for every policy of the registry.
func eachPolicy(t *testing.T, f func(t *testing.T, name string)) {
	t.Helper()
	for _, name := range policy.Names() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f(t, name)
		})
	}
}

// prompts counts the prompts of share, so that each is new: no instance has it in cache.
var prompts atomic.Uint64

// share picks for n sessions, with 64 picks in flight at a time, and returns the share of each
// address in percent. again, if not nil, reports whether a request must be picked for again.
func share(t *testing.T, s *sched.Scheduler, n int, again func(*sched.Assignment) bool) map[string]float64 {
	t.Helper()
	got := map[string]float64{}
	var held []*sched.Assignment
	for i := range n {
		r := sched.Request{Role: instance.Decode, Model: "m", Session: fmt.Sprint("session-", i), Prompt: []byte(strings.Repeat(fmt.Sprint("prompt-", prompts.Add(1)), 50))}
		for {
			a := pick(t, s, r)
			if again != nil && again(a) {
				a.Done()
				require.False(t, slices.Contains(r.Tried, a.Instance.Key), "%s again", a.Instance.Key)
				r.Tried = append(r.Tried, a.Instance.Key)
				continue
			}
			got[a.Instance.Address] += 100 / float64(n)
			held = append(held, a)
			break
		}
		if len(held) > 64 {
			held[0].Done()
			held = held[1:]
		}
	}
	for _, a := range held {
		a.Done()
	}
	return got
}

func checkShares(t *testing.T, got map[string]float64, within float64, want map[string]float64) {
	t.Helper()
	for address, w := range want {
		if g := got[address]; g < w-within || g > w+within {
			t.Errorf("shares %v, want %v, %g to either side", got, want, within)
			return
		}
	}
}

// tolerance returns the allowed deviation of shares: those of sessions depend on their hashes.
func tolerance(name string) float64 {
	if name == policy.Session {
		return 3
	}
	return 2
}

// Weights 3:1 yield shares 3:1. An instance with weight 0 gets no requests, even if it is the last one.
func TestWeights(t *testing.T) {
	t.Parallel()
	eachPolicy(t, func(t *testing.T, name string) {
		heavy, light, none := inst(instance.Decode, "h:1", weighing(300)), inst(instance.Decode, "l:1"), inst(instance.Decode, "n:1", weighing(0))
		s, src := chosenBy(t, name, nil, false, heavy, light, none)
		got := share(t, s, 10_000, nil)
		checkShares(t, got, tolerance(name), map[string]float64{"h:1": 75, "l:1": 25})
		if _, picked := got["n:1"]; picked {
			t.Errorf("with weight 0: %v", got)
		}
		// A new weight applies from the next snapshot on.
		src.set(inst(instance.Decode, "h:1"), light, none)
		checkShares(t, share(t, s, 10_000, nil), tolerance(name), map[string]float64{"h:1": 50, "l:1": 50})
		src.set(none)
		if a, err := s.Pick(decode("m")); err == nil {
			t.Errorf("picked %v", a.Instance)
		}
		src.set(heavy, none)
		if a, err := s.Pick(decode("m", heavy.Key)); err == nil {
			t.Errorf("picked %v as the last resort", a.Instance)
		}
	})
}

// recovering is a health with ejected instances and instances in slow start.
type recovering struct {
	sick
	share map[instance.Key]float64
}

func (r recovering) Troubled() []instance.Key {
	return slices.AppendSeq(r.sick.Troubled(), maps.Keys(r.share))
}

func (r recovering) Share(k instance.Key) float64 {
	if s, ok := r.share[k]; ok {
		return s
	}
	return 1
}

// The requests that an ejected instance, or one in slow start,
// does not get are shared by all others, by weight.
func TestShares_WithEjectedInstances(t *testing.T) {
	t.Parallel()
	eachPolicy(t, func(t *testing.T, name string) {
		fleet := []*instance.Instance{
			inst(instance.Decode, "a:1"), inst(instance.Decode, "b:1"), inst(instance.Decode, "c:1"), inst(instance.Decode, "d:1", weighing(200)),
		}
		key := func(address string) instance.Key { return instance.Key{Role: instance.Decode, Address: address} }
		s, _ := chosenBy(t, name, recovering{sick: sick{key("b:1"): true}}, false, fleet...)
		checkShares(t, share(t, s, 10_000, nil), tolerance(name), map[string]float64{"a:1": 25, "b:1": 0, "c:1": 25, "d:1": 50})

		s, _ = chosenBy(t, name, recovering{share: map[instance.Key]float64{key("d:1"): 0.25}}, false, fleet...)
		want := map[string]float64{"a:1": 28.6, "b:1": 28.6, "c:1": 28.6, "d:1": 14.3}
		if name == policy.Session { // slow start does not apply to sessions
			want = map[string]float64{"a:1": 20, "b:1": 20, "c:1": 20, "d:1": 40}
		}
		checkShares(t, share(t, s, 10_000, nil), tolerance(name), want)
	})
}

// Requests that failed on one instance are spread over the others, by weight.
func TestSharesOfRetries(t *testing.T) {
	t.Parallel()
	eachPolicy(t, func(t *testing.T, name string) {
		s, _ := chosenBy(t, name, nil, false, inst(instance.Decode, "a:1"), inst(instance.Decode, "b:1"),
			inst(instance.Decode, "c:1"), inst(instance.Decode, "d:1", weighing(200)))
		got := share(t, s, 10_000, func(a *sched.Assignment) bool { return a.Instance.Address == "a:1" })
		checkShares(t, got, tolerance(name), map[string]float64{"a:1": 0, "b:1": 25, "c:1": 25, "d:1": 50})
	})
}

// If prefill instances of two dialects take turns, each decode
// instance gets its share of its dialect's requests.
func TestSharesOfTwoDialects(t *testing.T) {
	t.Parallel()
	eachPolicy(t, func(t *testing.T, name string) {
		nixl := func(in *instance.Instance) { in.Record.Connector = "nixl" }
		s, _ := chosenBy(t, name, nil, false, inst(instance.Prefill, "p:1"), inst(instance.Prefill, "p:2", nixl),
			inst(instance.Decode, "a:1"), inst(instance.Decode, "b:1", nixl), inst(instance.Decode, "c:1"), inst(instance.Decode, "d:1", nixl))
		got := map[string]float64{}
		const n = 10_000
		for i := range n {
			session := fmt.Sprint("session-", i)
			p := pick(t, s, sched.Request{Role: instance.Prefill, Model: "m", Session: session})
			d, err := s.Pick(sched.Request{Role: instance.Decode, Model: "m", Session: session, Partner: p})
			require.True(t, err == nil && d.Connector == p.Connector, "%+v beside %+v: %v", d, p, err)
			got[d.Instance.Address] += 100. / n
			p.Done()
			d.Done()
		}
		checkShares(t, got, tolerance(name), map[string]float64{"a:1": 25, "b:1": 25, "c:1": 25, "d:1": 25})
	})
}

// An assignment names the policy that chose it.
func TestAssignment_NamesPolicy(t *testing.T) {
	t.Parallel()
	list := []*instance.Instance{inst(instance.Decode, "a:1"), inst(instance.Decode, "b:1")}
	eachPolicy(t, func(t *testing.T, name string) {
		for _, bind := range []bool{false, true} {
			s, _ := chosenBy(t, name, nil, bind, list...)
			chosen := map[string]uint64{}
			for _, session := range []string{"", "s"} {
				want := name
				switch {
				case session != "" && bind:
					want = policy.Session
				case session == "" && name == policy.Session:
					want = policy.Default
				}
				r := decode("m")
				r.Session, r.Prompt = session, make([]byte, 1000)
				a, err := s.Pick(r)
				assert.True(t, err == nil && a.Policy == want && a.Rank == 0,
					"bound %t, session %q: %+v, %v; want %s", bind, session, a, err, want)
				chosen[want]++
			}
			s.Tally.Picks.Each(func(role instance.Role, by string, n uint64) {
				if want := chosen[by]; role == instance.Decode && n != want || role == instance.Prefill && n != 0 {
					t.Errorf("bound %t: %d %s picks by %s, want %d", bind, n, role, by, want)
				}
			})
		}
	})
}

// Each role has its own policy, and round robin by default.
func TestPolicyOfEachRole(t *testing.T) {
	t.Parallel()
	src := &source{}
	src.set(inst(instance.Prefill, "p:1"), inst(instance.Decode, "d:1"))
	random := policyNamed(t, "random")
	s := sched.New(sched.Options{
		Source: src, Health: sick{}, PairKey: func(*instance.Instance) connector.PairKey { return connector.PairKey{Connector: "plain"} },
		Policies: map[instance.Role]policy.Kind{instance.Prefill: random},
	})
	for role, want := range map[instance.Role]string{instance.Prefill: "random", instance.Decode: policy.Default} {
		if a, err := s.Pick(sched.Request{Role: role, Model: "m"}); err != nil || a.Policy != want {
			t.Errorf("%s: %+v, %v", role, a, err)
		}
	}
}

// A policy gets the fields of the request unchanged.
func TestPolicy_ReceivesRequest(t *testing.T) {
	t.Parallel()
	src := &source{}
	src.set(inst(instance.Prefill, "p:1"), inst(instance.Decode, "d:1"))
	saw := &recordingPolicy{}
	kind := policy.Kind{Name: "seeing", New: func(policy.Options) policy.Policy { return saw }}
	s := sched.New(sched.Options{
		Source: src, Health: sick{}, PairKey: func(*instance.Instance) connector.PairKey { return connector.PairKey{Connector: "plain"} },
		Policies: map[instance.Role]policy.Kind{instance.Decode: kind}, NoBinding: true,
	})
	p := pick(t, s, sched.Request{Role: instance.Prefill, Model: "m"})
	prompt := []byte(`"hello"`)
	d, err := s.Pick(sched.Request{
		Role: instance.Decode, Model: "m", Partner: p, Session: "s", Prompt: prompt,
	})
	require.True(t, err == nil && d.Policy == policy.Default,
		"%+v, %v: the default chooses where another does not", d, err)
	r := saw.r
	assert.True(t, r.Role == instance.Decode && r.Model == "m" && r.Session == "s" && &r.Prompt[0] == &prompt[0],
		"%+v", r)
}

// recordingPolicy records the request and leaves the choice to other policies.
type recordingPolicy struct{ r policy.Request }

func (s *recordingPolicy) Choose(_ policy.Candidates, r policy.Request) (at, cached int) {
	s.r = r
	return -1, 0
}

// While many goroutines pick and instances are added, removed and reweighted, no
// instance with weight 0 is picked. In the end, nothing is in flight.
func TestConcurrentPicks(t *testing.T) {
	t.Parallel()
	eachPolicy(t, func(t *testing.T, name string) {
		fleet := func(i int) (list []*instance.Instance) {
			for n := range 8 {
				if n != i%8 {
					list = append(list, inst(instance.Decode, fmt.Sprintf("d:%d", n+1), weighing((i+n)%3*50)))
				}
			}
			return append(list, inst(instance.Decode, fmt.Sprintf("x:%d", i)))
		}
		s, src := chosenBy(t, name, recovering{
			sick:  sick{{Role: instance.Decode, Address: "d:3"}: true},
			share: map[instance.Key]float64{{Role: instance.Decode, Address: "d:5"}: 0.5},
		}, true, fleet(0)...)
		var wg sync.WaitGroup
		stop := make(chan struct{})
		for worker := range 6 {
			wg.Go(func() {
				for i := 0; ; i++ {
					select {
					case <-stop:
						return
					default:
					}
					r := decode("m")
					if i%3 == 0 {
						r.Session = fmt.Sprint(worker, i)
					}
					a, err := s.Pick(r)
					if err != nil {
						t.Errorf("pick: %v", err)
						return
					}
					assert.NotEqual(t, 0, a.Instance.Weight(), "%s with weight 0", a.Instance.Key)
					if i%4 == 0 { // it failed, and is picked again
						r.Tried = []instance.Key{a.Instance.Key}
						b, err := s.Pick(r)
						assert.True(t, err == nil && b.Instance.Key != a.Instance.Key, "%+v after %s: %v", b, a.Instance.Key, err)
						b.Done()
					}
					a.Done()
				}
			})
		}
		for i := range 300 {
			src.set(fleet(i)...)
			if a, err := s.Pick(decode("m")); err == nil {
				a.Done()
			}
		}
		close(stop)
		wg.Wait()
		s.Loads.Each(func(k instance.Key, n int64) {
			assert.EqualValues(t, 0, n, "%s: in flight", k)
		})
	})
}

// If all candidates may be picked, a pick allocates only its
// assignment, with every policy, and copies no list.
func TestPick_Allocations(t *testing.T) {
	for _, name := range policy.Names() {
		s, _ := chosenBy(t, name, nil, true, decodes(200)...)
		for _, session := range []string{"", "s"} {
			r := decode("m")
			r.Session = session
			if n := testing.AllocsPerRun(100, func() {
				pick(t, s, r).Done()
			}); n > 1 {
				t.Errorf("%s, session %q: %g allocations", name, session, n)
			}
		}
	}
}

// The bytes of a picture do not count as tokens: its engine keeps its chats, the estimate for text stays.
func TestMedia_NotCountedAsText(t *testing.T) {
	t.Parallel()
	s, _ := chosenBy(t, "prefix", nil, true, inst(instance.Prefill, "p:1"), inst(instance.Prefill, "p:2"))
	ask := func(more string) *sched.Assignment {
		t.Helper()
		parsed, err := request.Parse(openai.Chat, []byte(`{"messages":[{"role":"user","content":[{"type":"text","text":"`+strings.Repeat("many words ", 400)+`"}`+more+`]}]}`))
		require.NoError(t, err)
		r := sched.Request{Role: instance.Prefill, Model: "m", Unpaired: true}
		r.Head, r.Prompt, r.Media = parsed.Reading(nil)
		return pick(t, s, r)
	}
	first := ask("")
	first.Done()
	picture := ask(`,{"type":"image_url","image_url":{"url":"data:image/png;base64,` + strings.Repeat("iVBOR", 200_000) + `"}}`)
	if l := s.LoadOf(first.Instance.Address); picture.Instance != first.Instance || l.Held.Load() > 2000 || l.Waiting.Load() > 1000 {
		t.Errorf("a picture went to %s, not %s; %d tokens held, %d waiting", picture.Instance.Key, first.Instance.Key, l.Held.Load(), l.Waiting.Load())
	}
	picture.Prefilled(8000, 0)
	picture.Done()
	if next := ask(""); next.Instance != first.Instance || next.Tokens != first.Tokens || next.Cached == 0 {
		t.Errorf("then a chat of %s went to %s: %d tokens, %d cached, before %d", first.Instance.Key, next.Instance.Key, next.Tokens, next.Cached, first.Tokens)
	}
}

// token_weighted picks the instance with the fewest bytes in flight. A leg's score is
// subtracted once, when the leg ends. The scores of an engine's two roles are separate.
func TestScores_Released(t *testing.T) {
	t.Parallel()
	s, _ := chosenBy(t, policy.TokenWeighted, nil, false,
		inst(instance.Prefill, "b:1"), inst(instance.Decode, "b:1"), inst(instance.Decode, "d:1"))
	pick := func(role instance.Role, length int) *sched.Assignment {
		a := pick(t, s, sched.Request{Role: role, Model: "m", Length: length, Unpaired: true})
		return a
	}
	p := pick(instance.Prefill, 1000)
	first := pick(instance.Decode, 4000)
	second := pick(instance.Decode, 3000)
	assert.True(t, first.Instance != second.Instance, "both went to %s", first.Instance.Key)
	if third := pick(instance.Decode, 500); third.Instance != second.Instance {
		t.Errorf("4,000 bytes against 3,000: the next went to %s", third.Instance.Key)
	} else {
		third.Done()
	}
	first.Done()
	first.Done()
	if next := pick(instance.Decode, 500); next.Instance != first.Instance {
		t.Errorf("0 bytes against 3,000: the next went to %s", next.Instance.Key)
	} else {
		next.Done()
	}
	second.Done()
	l := s.LoadOf("b:1")
	assert.EqualValues(t, 128_699_500, l.ScoreOf(instance.Prefill).Load(), "prefill scores")
	p.Done()
	for _, address := range []string{"b:1", "d:1"} {
		for _, role := range instance.Roles() {
			assert.EqualValues(t, 0, s.LoadOf(address).ScoreOf(role).Load(), "%s %s: is left", role, address)
		}
	}
}
