package load_test

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pdmesh/pdmesh/bench/answer"
	"github.com/pdmesh/pdmesh/bench/engine"
	"github.com/pdmesh/pdmesh/bench/load"
	"github.com/pdmesh/pdmesh/sim/testkit"
	"github.com/pdmesh/pdmesh/sim/testkit/leak"
)

func TestMain(m *testing.M) { leak.Main(m) }

// run applies a load until n responses have arrived.
func run(t *testing.T, p load.Plan, n uint64) *load.Tally {
	t.Helper()
	g := load.Start(t.Context(), p)
	t.Cleanup(func() { g.Stop(0) })
	tally := g.Tally()
	responses := func() uint64 { return tally.Right.Load() + tally.Bad() }
	testkit.Until(t, time.Minute, responses, func(got uint64) bool { return got >= n })
	assert.False(t, g.Stop(30*time.Second), "a response did not end")
	return tally
}

func startEngine(t *testing.T, itl time.Duration) string {
	t.Helper()
	e, err := engine.Start(t.Context(), []string{"127.0.0.1:0"}, itl)
	require.NoError(t, err)
	t.Cleanup(e.Close)
	return e.Addresses()[0]
}

func TestGenerator_ValidResponses(t *testing.T) {
	t.Parallel()
	for name, p := range map[string]load.Plan{
		"whole":       {Shape: answer.Shape{Prompt: 128, Tokens: 1}, Conns: 4},
		"long prompt": {Shape: answer.Shape{Prompt: 64 << 10, Tokens: 1}, Conns: 2},
		"streams":     {Shape: answer.Shape{Prompt: 300, Tokens: 20, Stream: true}, Conns: 8, Ramp: 5 * time.Millisecond},
		"one token":   {Shape: answer.Shape{Prompt: 99, Tokens: 1, Stream: true}, Conns: 4},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p.Address = startEngine(t, time.Millisecond)
			tally := run(t, p, 20)
			right, tokens := tally.Right.Load(), uint64(p.Shape.Tokens)
			if tally.Bad() > 0 || tally.Tokens.Load() != right*tokens || tally.TTFT.Count() != right {
				t.Errorf("%d right, %d tokens, %d times to the first one; %q", right, tally.Tokens.Load(), tally.TTFT.Count(), tally.Problems())
			}
			if p.Shape.Stream && tally.ITL.Count() != right*(tokens-1) {
				t.Errorf("%d times between tokens", tally.ITL.Count())
			}
		})
	}
}

// TestGenerator_DamagedResponses puts a proxy in between that damages responses.
func TestGenerator_DamagedResponses(t *testing.T) {
	t.Parallel()
	shape := answer.Shape{Prompt: 64, Tokens: 3, Stream: true}
	for name, tt := range map[string]struct {
		damage func(w http.ResponseWriter, text string)
		wrong  bool
	}{
		"a token lost": {func(w http.ResponseWriter, text string) {
			events := strings.SplitAfter(text, "\n\n")
			_, _ = io.WriteString(w, strings.Join(append(events[:2], events[3:]...), ""))
		}, true},
		"cut": {func(w http.ResponseWriter, text string) { _, _ = io.WriteString(w, text[:len(text)-5]) }, true},
		"broken off": {func(w http.ResponseWriter, text string) {
			_, _ = io.WriteString(w, text[:300])
			panic(http.ErrAbortHandler)
		}, false},
		"unavailable": {func(w http.ResponseWriter, _ string) { http.Error(w, "no", http.StatusServiceUnavailable) }, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			back := "http://" + startEngine(t, 0)
			front := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				res, err := http.Post(back+r.URL.Path, "application/json", r.Body) //nolint:noctx // a test
				if err != nil {
					panic(err)
				}
				defer res.Body.Close()
				text, _ := io.ReadAll(res.Body)
				tt.damage(w, string(text))
			}))
			defer front.Close()
			defer http.DefaultTransport.(*http.Transport).CloseIdleConnections()
			tally := run(t, load.Plan{Address: front.Listener.Addr().String(), Shape: shape, Conns: 1}, 2)
			if tally.Right.Load() > 0 || (tally.Wrong.Load() > 0) != tt.wrong || (tally.Failed.Load() > 0) == tt.wrong || len(tally.Problems()) == 0 {
				t.Errorf("%d right, %d wrong, %d failed: %q", tally.Right.Load(), tally.Wrong.Load(), tally.Failed.Load(), tally.Problems())
			}
		})
	}
}

// TestGenerator_Cut ends streams that would not end by themselves.
func TestGenerator_Cut(t *testing.T) {
	t.Parallel()
	const clients = 20
	addr := startEngine(t, 10*time.Millisecond)
	g := load.Start(t.Context(), load.Plan{Address: addr, Shape: answer.Shape{Prompt: 64, Tokens: 100_000, Stream: true}, Conns: clients})
	testkit.Until(t, time.Minute, g.Open, func(n int) bool { return n >= clients })
	before := g.Swap(new(load.Tally))
	if !g.Stop(0) || g.Open() != 0 || before.Bad() > 0 || g.Tally().Bad() > 0 {
		t.Errorf("after the end: %d open, %q %q", g.Open(), before.Problems(), g.Tally().Problems())
	}
}
