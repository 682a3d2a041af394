package fault_test

import (
	"errors"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/pdmesh/pdmesh/sim/fakevllm/fault"
	"github.com/pdmesh/pdmesh/sim/testkit/require"
)

// hits returns, for each of n requests, x if a fault affects it, and - if not.
func hits(s *fault.Script, n int, path, rank string, generates bool) string {
	var b strings.Builder
	for range n {
		if s.Match(path, rank, generates) != nil {
			b.WriteByte('x')
		} else {
			b.WriteByte('-')
		}
	}
	return b.String()
}

func TestMatch(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name       string
		f          fault.Fault
		path, rank string
		generates  bool
		want       string
	}{
		{"every route that generates", fault.Fault{}, "/v1/completions", "", true, "xxxx"},
		{"no other route", fault.Fault{}, "/health", "", false, "----"},
		{"one path", fault.Fault{Path: "/health"}, "/health", "", false, "xxxx"},
		{"another path", fault.Fault{Path: "/health"}, "/ping", "", false, "----"},
		{"a prefix", fault.Fault{Path: "/v1/*"}, "/v1/models", "", false, "xxxx"},
		{"a rank", fault.Fault{Rank: "1"}, "/v1/completions", "1", true, "xxxx"},
		{"another rank", fault.Fault{Rank: "1"}, "/v1/completions", "2", true, "----"},
		{"from the third on", fault.Fault{Nth: 3}, "/v1/completions", "", true, "--xx"},
		{"twice", fault.Fault{Times: 2}, "/v1/completions", "", true, "xx--"},
		{"the second alone", fault.Fault{Nth: 2, Times: 1}, "/v1/completions", "", true, "-x--"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			var s fault.Script
			tt.f.Kind = fault.Reset
			require.NoError(t, s.Add([]fault.Fault{tt.f}))
			if got := hits(&s, 4, tt.path, tt.rank, tt.generates); got != tt.want || s.Fired() != int64(strings.Count(got, "x")) {
				t.Errorf("%s, and %d are counted", got, s.Fired())
			}
		})
	}
}

// The same seed selects the same requests.
func TestSeed(t *testing.T) {
	t.Parallel()
	run := func(seed uint64) string {
		var s fault.Script
		require.NoError(t, s.Add([]fault.Fault{{Kind: fault.Reset, Probability: 0.5, Seed: seed}}))
		return hits(&s, 100, "/v1/completions", "", true)
	}
	one, again, two := run(1), run(1), run(2)
	if one != again || one == two {
		t.Error("a seed does not repeat its run, or two seeds do the same")
	}
	if n := strings.Count(one, "x"); n < 20 || n > 80 {
		t.Errorf("%d of 100 at probability 0.5", n)
	}
}

// The first fault that matches a request affects it.
func TestMatchInOrder(t *testing.T) {
	t.Parallel()
	var s fault.Script
	require.NoError(t, s.Add([]fault.Fault{{Kind: fault.Reset, Times: 1}, {Kind: fault.Close}}))
	for _, want := range []fault.Kind{fault.Reset, fault.Close} {
		if got := s.Match("/v1/completions", "", true); got == nil || got.Kind != want {
			t.Errorf("%+v, want %s", got, want)
		}
	}
}

// Add adds no fault of a list if one of them is invalid.
func TestInvalid(t *testing.T) {
	t.Parallel()
	for _, f := range []fault.Fault{
		{},
		{Kind: "bogus"},
		{Kind: fault.Reset, At: "later"},
		{Kind: fault.Status, Status: 42},
		{Kind: fault.Status, At: fault.AfterRole},
		{Kind: fault.Status, Tokens: 2},
		{Kind: fault.Reset, Times: -1},
		{Kind: fault.Reset, Probability: 2},
	} {
		var s fault.Script
		if err := s.Add([]fault.Fault{{Kind: fault.Reset}, f}); !errors.Is(err, fault.ErrInvalid) || hits(&s, 1, "/v1/completions", "", true) != "-" {
			t.Errorf("%+v: %v, or one is active", f, err)
		}
	}
}

func TestRead(t *testing.T) {
	t.Parallel()
	var s fault.Script
	for _, body := range []string{`{"kind":"slow","ttft":"250ms","itl":"1us","times":1}`, ` [{"kind":"reset","tokens":3,"times":1},{"kind":"abort","times":1}]`} {
		if err := s.Read(strings.NewReader(body)); err != nil {
			t.Fatalf("%s: %v", body, err)
		}
	}
	for _, want := range []fault.Fault{
		{Kind: fault.Slow, At: fault.AfterRead, Times: 1, TTFT: 250 * time.Millisecond, ITL: time.Microsecond},
		{Kind: fault.Reset, At: fault.AfterTokens, Times: 1, Tokens: 3},
		{Kind: fault.Abort, At: fault.AfterRole, Times: 1},
	} {
		if got := s.Match("/v1/completions", "", true); got == nil || !reflect.DeepEqual(*got, want) {
			t.Errorf("%+v, want %+v", got, want)
		}
	}
	for _, body := range []string{``, `{"kind":"slow","ttft":"soon"}`, `{"kind":"slow","unknown":1}`, `{"kind":"slow"} {}`} {
		if err := s.Read(strings.NewReader(body)); !errors.Is(err, fault.ErrInvalid) {
			t.Errorf("%s: %v", body, err)
		}
	}
}
