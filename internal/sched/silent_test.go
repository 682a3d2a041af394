package sched_test

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/internal/sched"
	"github.com/pdmesh/pdmesh/sim/testkit/members"
)

func slow(in *instance.Instance) {
	in.Record.State, in.Record.Cause = instance.Down, instance.CauseSlow
}

func dead(in *instance.Instance) { in.Record.State = instance.Down }

// An instance whose record says slow is picked only while no other one can be.
func TestSlowInstance_LastResort(t *testing.T) {
	t.Parallel()
	a, b := inst(instance.Decode, "a:1", slow), inst(instance.Decode, "b:1")
	down := inst(instance.Decode, "c:1", dead)
	out := sick{b.Key: true}
	for _, tc := range []struct {
		name   string
		health sched.Health
		list   []*instance.Instance
		tried  []instance.Key
		want   string // "" for none
	}{
		{"beside a ready one", nil, []*instance.Instance{a, b}, nil, "b:1"},
		{"alone", nil, []*instance.Instance{a, down}, nil, "a:1"},
		{"beside one that was tried", nil, []*instance.Instance{a, b}, []instance.Key{b.Key}, "a:1"},
		{"with one that is down", nil, []*instance.Instance{down}, nil, ""},
	} {
		for range 8 {
			for _, session := range []string{"", "s"} {
				s, _ := build(tc.health, tc.list...)
				r := decode("m", tc.tried...)
				r.Session = session
				p, err := s.Pick(r)
				switch {
				case tc.want == "" && !errors.Is(err, sched.ErrNone):
					t.Fatalf("%s: %v, %v", tc.name, p, err)
				case tc.want != "" && (err != nil || p.Instance.Address != tc.want):
					t.Fatalf("%s: %v, %v", tc.name, p, err)
				}
			}
		}
	}
	// If the ready one is unreachable, both may be tried.
	s, _ := build(out, a, b)
	got := map[string]bool{}
	for range 16 {
		p := pick(t, s, decode("m"))
		got[p.Instance.Address] = true
	}
	assert.Len(t, got, 2, "picked")
}

// suspendedHealth is a health with suspended instances.
type suspendedHealth struct{ sick }

func (h suspendedHealth) Share(k instance.Key) float64 {
	if h.sick[k] {
		return 0
	}
	return 1
}

// A suspended instance whose record says slow is not picked either.
func TestPick_SlowSuspendedInstance(t *testing.T) {
	t.Parallel()
	a, b := inst(instance.Decode, "a:1", slow), inst(instance.Decode, "b:1", slow)
	for range 8 {
		s, _ := build(suspendedHealth{sick{a.Key: true}}, a, b)
		if p, err := s.Pick(decode("m")); err != nil || p.Instance.Address != "b:1" {
			t.Fatalf("%v, %v", p, err)
		}
		s, _ = build(suspendedHealth{sick{a.Key: true}}, a)
		if p, err := s.Pick(decode("m")); !errors.Is(err, sched.ErrNone) {
			t.Fatalf("picked the suspended instance: %v, %v", p, err)
		}
	}
}

// silentHealth is a health in which some instances are ejected as silent.
type silentHealth struct {
	sick
	since time.Duration
}

func (m silentHealth) SilentFor(k instance.Key) time.Duration {
	if m.sick[k] {
		return m.since
	}
	return 0
}

// If decode-only is possible, no request waits for a silent prefill instance, and the queue counts
// neither silent nor slow prefill instances. A silent decode instance is picked if there is no other.
func TestSilentPrefill_FallbackPreferred(t *testing.T) {
	t.Parallel()
	p, d := inst(instance.Prefill, "p:1"), inst(instance.Decode, "d:1")
	slow := inst(instance.Prefill, "p:2", func(in *instance.Instance) { in.Record.State, in.Record.Cause = instance.Down, instance.CauseSlow })
	health := silentHealth{sick{p.Key: true, d.Key: true}, time.Second}
	for _, optional := range []bool{true, false} {
		src := &source{}
		src.set(p, slow, d)
		s := sched.New(sched.Options{Source: src, Health: health, PrefillOptional: optional,
			PairKey: members.PairKey})
		if _, err := s.Pick(decode("m")); err != nil {
			t.Error(err)
		}
		if _, err := s.Pick(sched.Request{Role: instance.Prefill, Model: "m"}); (err != nil) != optional {
			t.Errorf("optional %t: %v", optional, err)
		}
		prefill, decode := s.Usable(instance.Prefill, "m", nil), s.Usable(instance.Decode, "m", nil)
		assert.True(t, len(decode) == 1 && (len(prefill) == 0) == optional,
			"optional %t: usable are %d prefill and %d decode instances", optional, len(prefill), len(decode))
	}
}

// waitingLeg is a leg that records its calls.
type waitingLeg struct {
	mu     sync.Mutex
	cause  error
	silent time.Duration
}

func (l *waitingLeg) CallOff(cause error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.cause = cause
}

func (*waitingLeg) Overtaken(int) {}

func (l *waitingLeg) Silent(d time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.silent = d
}

func (l *waitingLeg) recorded() (time.Duration, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.silent, l.cause
}

// failingHealth is a silentHealth in which every instance fails for one model.
type failingHealth struct {
	silentHealth
	model string
}

func (h failingHealth) Failing(_ instance.Key, model string) bool { return model == h.model }

// A leg that waits for a silent instance is called off only if another instance can take it over. If the
// leg has tried that one, or needs a model that it does not serve or is ejected for, the leg's Silent is called
// instead.
func TestSilentLegs_MovedIfPossible(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		a := inst(instance.Decode, "a:1", func(in *instance.Instance) { in.Record.Models = []string{"m", "rare", "bad"} })
		b := inst(instance.Decode, "b:1", func(in *instance.Instance) { in.Record.Models = []string{"m", "bad"} })
		src := &source{}
		src.set(a) // all picks go there
		health := failingHealth{silentHealth{sick{a.Key: true}, 7 * time.Second}, "bad"}
		var asked []instance.Key
		s := sched.New(sched.Options{Source: src, Health: health, Silent: func(in *instance.Instance) { asked = append(asked, in.Key) },
			PairKey: members.PairKey})
		ctx, stop := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		wg.Go(func() { s.Legs.Run(ctx) })
		legs := map[string]*waitingLeg{}
		for name, r := range map[string]sched.Request{
			"free": decode("m"), "tried the other": decode("m", b.Key), "rare model": decode("rare"), "failing model": decode("bad"),
		} {
			p := pick(t, s, r)
			defer p.Done()
			defer p.EndAwait()
			legs[name] = &waitingLeg{}
			p.Await(legs[name], time.Now())
		}
		time.Sleep(3 * time.Second)
		for name, l := range legs {
			silent, cause := l.recorded()
			assert.True(t, cause == nil && silent == 7*time.Second, "%s, alone: %v, silent for %s", name, cause, silent)
		}
		src.set(a, b)
		assert.True(t, s.CanServe("m", nil) && !s.CanServe("bad", nil), "model routes may use b only for the model that it is not ejected for")
		time.Sleep(2 * time.Second)
		for name, l := range legs {
			if _, cause := l.recorded(); errors.Is(cause, sched.ErrRemoved) != (name == "free") {
				t.Errorf("%s, beside another: %v", name, cause)
			}
		}
		stop()
		wg.Wait()
		n := len(asked)
		assert.True(t, n >= 3 && n <= 6, "asked %d times in 5 s", n)
	})
}

// Silent is not called for an instance that makes progress.
func TestResponsiveInstance_NotProbed(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		a := inst(instance.Decode, "a:1")
		src := &source{}
		src.set(a)
		var asked atomic.Int64
		s := sched.New(sched.Options{Source: src, Health: sick{}, Silent: func(*instance.Instance) { asked.Add(1) },
			PairKey: members.PairKey})
		ctx, stop := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		wg.Go(func() { s.Legs.Run(ctx) })
		streaming := pick(t, s, decode("m"))
		waits := pick(t, s, decode("m"))
		waits.Await(&waitingLeg{}, time.Now())
		for range 50 {
			streaming.NoteProgress()
			time.Sleep(100 * time.Millisecond)
		}
		assert.True(t, asked.Load() == 0 && s.Loads.Progress(a.Key) == 50,
			"asked %d times; progress %d", asked.Load(), s.Loads.Progress(a.Key))
		time.Sleep(3 * time.Second)
		assert.True(t, asked.Load() != 0, "no progress for 3 s, and Silent was not called")
		waits.EndAwait()
		waits.Done()
		streaming.Done()
		stop()
		wg.Wait()
	})
}

// A leg on an instance whose record says slow is called off if
// another instance can take it over; otherwise, it waits.
func TestLegsOnASlowInstance(t *testing.T) {
	t.Parallel()
	a, b := inst(instance.Decode, "a:1"), inst(instance.Decode, "b:1")
	s, src := build(nil, a)
	p := pick(t, s, decode("m"))
	defer p.Done()
	was := inst(instance.Decode, "a:1", slow)
	src.set(was)
	assert.NoError(t, s.Removed(p), "alone")
	src.set(was, b)
	if err := s.Removed(p); !errors.Is(err, sched.ErrRemoved) {
		t.Errorf("beside another: %v", err)
	}
	src.set(inst(instance.Decode, "a:1", dead))
	if err := s.Removed(p); !errors.Is(err, sched.ErrRemoved) {
		t.Errorf("down for another reason: %v", err)
	}
}

// quietHealth is a health in which some instances do not respond and none is ejected.
type quietHealth struct {
	sick
	quiet *sync.Map // set of keys
}

func (h quietHealth) SilentFor(k instance.Key) time.Duration {
	if _, quiet := h.quiet.Load(k); quiet {
		return 16 * time.Second
	}
	return 0
}

// A leg on a slow instance is not called off for another unresponsive instance until that one responds.
func TestLegs_SlowTogether(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		a, b := inst(instance.Decode, "a:1"), inst(instance.Decode, "b:1")
		var quiet sync.Map
		s, src := build(quietHealth{nil, &quiet}, a)
		ctx, stop := context.WithCancel(t.Context())
		var running sync.WaitGroup
		running.Go(func() { s.Legs.Run(ctx) })
		p, l := pick(t, s, decode("m")), &waitingLeg{}
		p.Await(l, time.Now())
		src.set(a, b)
		quiet.Store(a.Key, true)
		quiet.Store(b.Key, true)
		time.Sleep(time.Minute)
		src.set(inst(instance.Decode, "a:1", slow), b) // the record of b does not say slow yet
		s.Legs.Abandon(a.Key, false, "silent")
		time.Sleep(time.Minute)
		if _, cause := l.recorded(); cause != nil {
			t.Errorf("called off although no other instance responds: %v", cause)
		}
		quiet.Delete(b.Key)
		time.Sleep(time.Minute)
		if _, cause := l.recorded(); !errors.Is(cause, sched.ErrRemoved) {
			t.Errorf("not called off although the other instance responds: %v", cause)
		}
		p.EndAwait()
		p.Done()
		stop()
		running.Wait()
	})
}

// A decode instance owes bytes to every leg in flight, also to committed streams, which no longer wait. A
// prefill instance may have answered already: its leg lasts until decode has fetched the KV cache.
func TestLegs_CommittedStreamsAreSilent(t *testing.T) {
	t.Parallel()
	for role, want := range map[instance.Role]bool{instance.Decode: true, instance.Prefill: false} {
		synctest.Test(t, func(t *testing.T) {
			a, b := inst(instance.Decode, "a:1"), inst(instance.Prefill, "b:1")
			src := &source{}
			src.set(a, b)
			var asked atomic.Int64
			s := sched.New(sched.Options{Source: src, Health: sick{}, Silent: func(*instance.Instance) { asked.Add(1) },
				PairKey: members.PairKey})
			ctx, stop := context.WithCancel(t.Context())
			var wg sync.WaitGroup
			wg.Go(func() { s.Legs.Run(ctx) })
			p := pick(t, s, sched.Request{Role: role, Model: "m"})
			time.Sleep(5 * time.Second)
			assert.Equal(t, want, asked.Load() > 0, "%s: asked %d times", role, asked.Load())
			p.Done()
			stop()
			wg.Wait()
		})
	}
}

// A leg of an older pick that begins after the time to move is moved, too.
func TestLegs_MoveWhenTheyBeginLate(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s, src := build(nil, inst(instance.Decode, "a:1"))
		ctx, stop := context.WithCancel(t.Context())
		var running sync.WaitGroup
		running.Go(func() { s.Legs.Run(ctx) })
		a := pick(t, s, decode("m"))
		synctest.Wait()
		after := time.Second
		src.set(inst(instance.Decode, "a:1", func(in *instance.Instance) { in.Intent, in.MoveAfter = instance.Drain, &after }))
		time.Sleep(time.Minute)
		if !a.ShouldMove() { // its prompt was computed meanwhile
			t.Error("it stays")
		}
		src.set(inst(instance.Decode, "a:1"))
		synctest.Wait()
		b := pick(t, s, decode("m"))
		assert.True(t, !a.ShouldMove() && !b.ShouldMove(), "it moves after the drain was undone")
		a.Done()
		b.Done()
		stop()
		running.Wait()
	})
}

// Streams move at the time of the current drain, not of an earlier one that was lifted or had another delay.
func TestLegs_MoveAfterTheLastDrain(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name   string
		undone bool
		until  time.Duration // from a drain with one minute to the second drain
		after  time.Duration // of the second drain
	}{
		{"undone between", true, time.Minute / 2, time.Minute},
		{"longer", false, time.Minute / 2, time.Hour},
		{"shorter", false, time.Minute / 2, time.Second},
		{"undone after its time", true, 2 * time.Minute, time.Minute},
		{"longer after its time", false, 2 * time.Minute, time.Hour},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				s, src := build(nil, inst(instance.Decode, "a:1"))
				ctx, stop := context.WithCancel(t.Context())
				var running sync.WaitGroup
				running.Go(func() { s.Legs.Run(ctx) })
				a := pick(t, s, decode("m"))
				drain := func(after time.Duration) {
					synctest.Wait()
					src.set(inst(instance.Decode, "a:1", func(in *instance.Instance) { in.Intent, in.MoveAfter = instance.Drain, &after }))
				}
				drain(time.Minute)
				time.Sleep(tc.until)
				if tc.undone {
					src.set(inst(instance.Decode, "a:1"))
				}
				drain(tc.after)
				time.Sleep(tc.after - time.Millisecond)
				assert.False(t, a.ShouldMove(), "it moves too early")
				time.Sleep(time.Hour)
				assert.True(t, a.ShouldMove(), "it stays")
				a.Done()
				stop()
				running.Wait()
			})
		})
	}
}

// A change before the first check calls legs off, too: a proxy
// that has just started may pick before Run has begun.
func TestLegs_ChangeBeforeFirstCheck(t *testing.T) {
	t.Parallel()
	s, src := build(nil, inst(instance.Decode, "d:1"))
	leg := &waitingLeg{}
	pick(t, s, decode("m")).Await(leg, time.Now())
	src.set()
	ended, end := context.WithCancel(t.Context())
	end()
	s.Legs.Run(ended)
	assert.Error(t, leg.cause, "its instance left, and it still waits")
}
