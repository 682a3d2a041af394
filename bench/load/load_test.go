package load_test

import (
	"bufio"
	"fmt"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/pdmesh/pdmesh/bench/answer"
	"github.com/pdmesh/pdmesh/bench/engine"
	"github.com/pdmesh/pdmesh/bench/load"
	"github.com/pdmesh/pdmesh/sim/fakevllm"
	"github.com/pdmesh/pdmesh/sim/testkit"
	"github.com/pdmesh/pdmesh/sim/testkit/leak"
)

func TestMain(m *testing.M) { leak.Main(m) }

func startEngine(t *testing.T, itl time.Duration) (*engine.Engine, []string) {
	t.Helper()
	e, err := engine.Start(t.Context(), engine.Options{Listen: []string{"127.0.0.1:0"}, ITL: itl})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(e.Close)
	return e, e.Addresses()
}

// until runs a load until n answers came, and returns all counters.
func until(t *testing.T, p load.Plan, n uint64) *load.Tally {
	t.Helper()
	g, err := load.Start(t.Context(), p)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { g.Stop(0) })
	tally := g.Tally()
	testkit.Eventually(t, time.Minute, func() error {
		if got := tally.Right.Load() + tally.Bad() + tally.Left.Load(); got < n {
			return fmt.Errorf("%d of %d answers", got, n)
		}
		return nil
	})
	if cut := g.Stop(30 * time.Second); cut > 0 {
		t.Errorf("%d requests did not end", cut)
	}
	return tally
}

func TestLoads(t *testing.T) {
	t.Parallel()
	shape := answer.Shape{Prompt: 300, Tokens: 20, Stream: true}
	whole := answer.Shape{Prompt: 128, Tokens: 1}
	tests := []struct {
		name   string
		itl    time.Duration
		twoHop bool
		plan   load.Plan
	}{
		{"streams", 0, false, load.Plan{Shape: shape, Conns: 4}},
		{"paced streams", time.Millisecond, false, load.Plan{Shape: shape, Conns: 8, Ramp: 5 * time.Millisecond}},
		{"paced streams of one token", time.Millisecond, false, load.Plan{Shape: answer.Shape{Prompt: 99, Tokens: 1, Stream: true}, Conns: 4}},
		{"two hops", 0, true, load.Plan{Shape: shape, Conns: 4}},
		{"whole answers", 0, false, load.Plan{Shape: whole, Conns: 4}},
		{"whole answers by two hops", 0, true, load.Plan{Shape: whole, Conns: 4}},
		{"a long prompt by two hops", 0, true, load.Plan{Shape: answer.Shape{Prompt: 1 << 20, Tokens: 1}, Conns: 2}},
		{"streamed responses", 0, true, load.Plan{Shape: answer.Shape{Prompt: 300, Tokens: 20, Stream: true, API: answer.Responses}, Conns: 4}},
		{"streamed messages", time.Millisecond, true, load.Plan{Shape: answer.Shape{Prompt: 300, Tokens: 20, Stream: true, API: answer.Messages}, Conns: 4}},
		{"responses", 0, true, load.Plan{Shape: answer.Shape{Prompt: 300, Tokens: 2, API: answer.Responses}, Conns: 4}},
		{"messages", 0, true, load.Plan{Shape: answer.Shape{Prompt: 300, Tokens: 2, API: answer.Messages}, Conns: 4}},
		{"an open loop", 0, false, load.Plan{Shape: whole, Conns: 4, Rate: 2000, Seed: 7}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			e, addrs := startEngine(t, tt.itl)
			tt.plan.Addresses = addrs
			if tt.twoHop {
				tt.plan.Prefill = addrs
			}
			tally := until(t, tt.plan, 20)
			right := tally.Right.Load()
			if tally.Bad() > 0 || right < 20 {
				t.Errorf("%v: %q", tally, tally.Problems())
			}
			if want := right * uint64(tt.plan.Shape.Tokens); tally.Tokens.Load() != want {
				t.Errorf("%d tokens, want %d", tally.Tokens.Load(), want)
			}
			if tally.TTFT.Count() != right || tally.Total.Count() != right {
				t.Errorf("%d times to the first token, %d in total, for %d answers", tally.TTFT.Count(), tally.Total.Count(), right)
			}
			testkit.Eventually(t, time.Minute, func() error { // it counts an answer off when its client has it
				if s := e.Stats(); s.Active != 0 {
					return fmt.Errorf("the engine is busy: %+v", s)
				}
				return nil
			})
			s := e.Stats()
			if s.Violations != 0 || s.Aborts != 0 {
				t.Errorf("the engine saw %+v", s)
			}
			if tt.twoHop && (s.Prefills != right || s.Handovers != right) {
				t.Errorf("%d prefills, %d hand-overs, for %d answers", s.Prefills, s.Handovers, right)
			}
		})
	}
}

func TestVanish(t *testing.T) {
	t.Parallel()
	const clients = 50
	e, addrs := startEngine(t, time.Millisecond)
	g, err := load.Start(t.Context(), load.Plan{Addresses: addrs, Shape: answer.Shape{Prompt: 64, Tokens: 1_000_000, Stream: true}, Conns: clients})
	if err != nil {
		t.Fatal(err)
	}
	defer g.Stop(0)
	testkit.Eventually(t, time.Minute, func() error {
		if n := g.Open(); n < clients {
			return fmt.Errorf("%d answers have begun", n)
		}
		return nil
	})
	before := time.Now()
	g.Vanish()
	testkit.Eventually(t, time.Minute, func() error {
		if s := e.Stats(); s.Active > 0 || s.Aborts < clients {
			return fmt.Errorf("the engine sees %+v", s)
		}
		return nil
	})
	if at := e.Stats().LastAbort; at.Before(before) {
		t.Errorf("the last abort was at %v, before the clients left at %v", at, before)
	}
	g.Stop(time.Minute)
	if tally := g.Tally(); tally.Left.Load() != clients || tally.Bad() > 0 {
		t.Errorf("%v: %q", tally, tally.Problems())
	}
}

func TestLeaving(t *testing.T) {
	t.Parallel()
	e, addrs := startEngine(t, time.Millisecond)
	tally := until(t, load.Plan{
		Addresses: addrs, Prefill: addrs, Shape: answer.Shape{Prompt: 64, Tokens: 20, Stream: true}, Conns: 8, Leave: 0.5, Seed: 3,
	}, 60)
	if tally.Bad() > 0 || tally.Left.Load() == 0 || tally.Right.Load() == 0 {
		t.Errorf("%v: %q", tally, tally.Problems())
	}
	if s := e.Stats(); s.Violations > 0 {
		t.Errorf("the engine saw %+v", s)
	}
}

func TestStrictEngine(t *testing.T) {
	t.Parallel()
	s := fakevllm.StartTest(t, fakevllm.Options{Models: []string{answer.Model}, Mode: fakevllm.NIXL, RecordLimit: fakevllm.RecordNone})
	for _, stream := range []bool{true, false} {
		tally := until(t, load.Plan{
			Addresses: []string{s.Address()}, Prefill: []string{s.Address()}, Strict: true,
			Shape: answer.Shape{Prompt: 200, Tokens: 5, Stream: stream}, Conns: 2,
		}, 4)
		if tally.Bad() > 0 {
			t.Errorf("stream %v: %v: %q", stream, tally, tally.Problems())
		}
	}
}

// tampered serves streams whose chunks went through a hand that should not
// have touched them.
func tampered(t *testing.T, shape answer.Shape, change func([]string) []string, breakOff bool) string {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	srv := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body := bufio.NewScanner(r.Body)
		body.Buffer(nil, 1<<20)
		body.Scan()
		_, rest, _ := strings.Cut(body.Text(), answer.Mark)
		tag, err := answer.ParseTag([]byte(rest))
		if err != nil {
			http.Error(w, err.Error(), 400)
			return
		}
		q := answer.NewRequest(shape, false)
		s := answer.NewStream(answer.Chat, shape.Tokens, q.Len(), q.Sum, true)
		s.SetTag(tag)
		var events []string
		for i := range s.Events() {
			events = append(events, string(s.Event(i)))
		}
		for _, e := range change(events) {
			fmt.Fprint(w, e)
		}
		if breakOff {
			_ = http.NewResponseController(w).Flush()
			panic(http.ErrAbortHandler)
		}
	})}
	done := make(chan struct{})
	go func() { defer close(done); _ = srv.Serve(ln) }()
	t.Cleanup(func() { _ = srv.Close(); <-done })
	return ln.Addr().String()
}

func TestTamperedAnswersAreWrong(t *testing.T) {
	t.Parallel()
	shape := answer.Shape{Prompt: 64, Tokens: 8, Stream: true}
	tests := []struct {
		name     string
		change   func([]string) []string
		breakOff bool
		problem  string // empty: right
	}{
		{"untouched", func(e []string) []string { return e }, false, ""},
		{"in other pieces", func(e []string) []string { return strings.SplitAfter(strings.Join(e, ""), "0") }, false, ""},
		{"swapped", func(e []string) []string { e[3], e[4] = e[4], e[3]; return e }, false, "in event 3"},
		{"duplicated", func(e []string) []string { return append(e[:4:4], e[3:]...) }, false, "in event 4"},
		{"lost", func(e []string) []string { return append(e[:5:5], e[6:]...) }, false, "in event 5"},
		{"cut cleanly", func(e []string) []string { return e[:6] }, false, "ended cleanly in event 6 of 11"},
		{"cut within an event", func(e []string) []string { e[5] = e[5][:30]; return e[:6] }, false, "ended cleanly in event 5 of 11"},
		{"without its end marker", func(e []string) []string { return e[:len(e)-1] }, false, "ended cleanly"},
		{"one byte changed", func(e []string) []string { e[2] = strings.Replace(e[2], "content", "c0ntent", 1); return e }, false, "in event 2"},
		{"too much", func(e []string) []string { return append(e, "data: x\n\n") }, false, "behind the end"},
		{"another request's chunk", func(e []string) []string {
			e[2] = strings.ReplaceAll(e[2], "00000000000000", "00000000000001")
			return e
		}, false, "in event 2"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			addr := tampered(t, shape, tt.change, tt.breakOff)
			tally := until(t, load.Plan{Addresses: []string{addr}, Shape: shape, Conns: 1}, 1)
			if tt.problem == "" {
				if tally.Bad() > 0 || tally.Right.Load() == 0 {
					t.Errorf("%v: %q", tally, tally.Problems())
				}
				return
			}
			if tally.Wrong.Load() == 0 || tally.Right.Load() > 0 {
				t.Fatalf("%v: %q, want only wrong ones", tally, tally.Problems())
			}
			if p := tally.Problems()[0]; !strings.Contains(p, tt.problem) {
				t.Errorf("%q does not say %q", p, tt.problem)
			}
		})
	}
	t.Run("broken off", func(t *testing.T) {
		t.Parallel()
		addr := tampered(t, shape, func(e []string) []string { return e[:4] }, true)
		tally := until(t, load.Plan{Addresses: []string{addr}, Shape: shape, Conns: 1}, 1)
		if tally.Broken.Load() == 0 || tally.Wrong.Load() > 0 || tally.Right.Load() > 0 {
			t.Errorf("%v: %q, want only broken ones", tally, tally.Problems())
		}
	})
}
