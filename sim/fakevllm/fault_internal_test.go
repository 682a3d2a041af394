package fakevllm

import (
	"errors"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// hits returns, for each of n requests, x if a fault affects it, and - if not.
func hits(s *faultScript, n int, path, rank string, generates bool) string {
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
		f          Fault
		path, rank string
		generates  bool
		want       string
	}{
		{"every route that generates", Fault{}, "/v1/completions", "", true, "xxxx"},
		{"no other route", Fault{}, "/health", "", false, "----"},
		{"one path", Fault{Path: "/health"}, "/health", "", false, "xxxx"},
		{"another path", Fault{Path: "/health"}, "/ping", "", false, "----"},
		{"a prefix", Fault{Path: "/v1/*"}, "/v1/models", "", false, "xxxx"},
		{"a rank", Fault{Rank: "1"}, "/v1/completions", "1", true, "xxxx"},
		{"another rank", Fault{Rank: "1"}, "/v1/completions", "2", true, "----"},
		{"from the third on", Fault{Nth: 3}, "/v1/completions", "", true, "--xx"},
		{"twice", Fault{Times: 2}, "/v1/completions", "", true, "xx--"},
		{"the second alone", Fault{Nth: 2, Times: 1}, "/v1/completions", "", true, "-x--"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			var s faultScript
			tt.f.Kind = FaultReset
			require.NoError(t, s.Add([]Fault{tt.f}))
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
		var s faultScript
		require.NoError(t, s.Add([]Fault{{Kind: FaultReset, Probability: 0.5, Seed: seed}}))
		return hits(&s, 100, "/v1/completions", "", true)
	}
	one, again, two := run(1), run(1), run(2)
	assert.True(t, one == again && one != two, "a seed does not repeat its run, or two seeds do the same")
	n := strings.Count(one, "x")
	assert.True(t, n >= 20 && n <= 80, "%d of 100 at probability 0.5", n)
}

// The first fault that matches a request affects it.
func TestMatchInOrder(t *testing.T) {
	t.Parallel()
	var s faultScript
	require.NoError(t, s.Add([]Fault{{Kind: FaultReset, Times: 1}, {Kind: FaultClose}}))
	for _, want := range []Kind{FaultReset, FaultClose} {
		got := s.Match("/v1/completions", "", true)
		assert.True(t, got != nil && got.Kind == want, "%+v, want %s", got, want)
	}
}

// Add adds no fault of a list if one of them is invalid.
func TestInvalid(t *testing.T) {
	t.Parallel()
	for _, f := range []Fault{
		{},
		{Kind: "bogus"},
		{Kind: FaultReset, At: "later"},
		{Kind: FaultStatus, Status: 42},
		{Kind: FaultStatus, At: AfterRole},
		{Kind: FaultStatus, Tokens: 2},
		{Kind: FaultReset, Times: -1},
		{Kind: FaultReset, Probability: 2},
	} {
		var s faultScript
		if err := s.Add([]Fault{{Kind: FaultReset}, f}); !errors.Is(err, errFault) || hits(&s, 1, "/v1/completions", "", true) != "-" {
			t.Errorf("%+v: %v, or one is active", f, err)
		}
	}
}

func TestRead(t *testing.T) {
	t.Parallel()
	var s faultScript
	for _, body := range []string{`{"kind":"slow","ttft":"250ms","itl":"1us","times":1}`, ` [{"kind":"reset","tokens":3,"times":1},{"kind":"abort","times":1}]`} {
		require.NoError(t, s.Read(strings.NewReader(body)), body)
	}
	for _, want := range []Fault{
		{Kind: FaultSlow, At: AfterRead, Times: 1, TTFT: 250 * time.Millisecond, ITL: time.Microsecond},
		{Kind: FaultReset, At: AfterTokens, Times: 1, Tokens: 3},
		{Kind: FaultAbort, At: AfterRole, Times: 1},
	} {
		got := s.Match("/v1/completions", "", true)
		assert.True(t, got != nil && reflect.DeepEqual(*got, want), "%+v, want %+v", got, want)
	}
	for _, body := range []string{``, `{"kind":"slow","ttft":"soon"}`, `{"kind":"slow","unknown":1}`, `{"kind":"slow"} {}`} {
		if err := s.Read(strings.NewReader(body)); !errors.Is(err, errFault) {
			t.Errorf("%s: %v", body, err)
		}
	}
}
