package assert_test

import (
	"errors"
	"fmt"
	"io"
	"testing"

	"github.com/pdmesh/pdmesh/sim/testkit/assert"
)

// recorder keeps the text of a failure.
type recorder struct {
	testing.TB
	text string
}

func (r *recorder) Helper()           {}
func (r *recorder) Error(args ...any) { r.text = fmt.Sprint(args...) }

// Each check passes, or fails with a text.
func TestChecks(t *testing.T) {
	t.Parallel()
	wrapped := fmt.Errorf("read: %w", io.EOF)
	for _, tc := range []struct {
		check func(t testing.TB) bool
		text  string
	}{
		{func(t testing.TB) bool { return assert.Equal(t, "a", "a") }, ""},
		{func(t testing.TB) bool { return assert.Equal(t, "a", "b", "%d engines", 2) }, `2 engines: got "a", want "b"`},
		{func(t testing.TB) bool { return assert.NotEqual(t, 1, 2) }, ""},
		{func(t testing.TB) bool { return assert.NotEqual(t, 1, 1, "100%") }, "100%: got 1"},
		{func(t testing.TB) bool { return assert.True(t, true) }, ""},
		{func(t testing.TB) bool { return assert.True(t, false, "no engine") }, "no engine"},
		{func(t testing.TB) bool { return assert.False(t, false) }, ""},
		{func(t testing.TB) bool { return assert.False(t, true, "%d engines", 2) }, "2 engines"},
		{func(t testing.TB) bool { return assert.EqualSlices(t, nil, []int{}) }, ""},
		{func(t testing.TB) bool { return assert.EqualSlices(t, []int{1}, []int{2}) }, "got [1], want [2]"},
		{func(t testing.TB) bool { return assert.Len(t, map[int]int{}, 0) }, ""},
		{func(t testing.TB) bool { return assert.Len(t, []string{"a"}, 2) }, `length 1, want 2: ["a"]`},
		{func(t testing.TB) bool { return assert.NoDiff(t, []int{1}, []int{1}) }, ""},
		{func(t testing.TB) bool { return assert.NoError(t, nil) }, ""},
		{func(t testing.TB) bool { return assert.NoError(t, io.EOF) }, "EOF"},
		{func(t testing.TB) bool { return assert.Error(t, io.EOF) }, ""},
		{func(t testing.TB) bool { return assert.Error(t, nil) }, "no error"},
		{func(t testing.TB) bool { return assert.ErrorIs(t, wrapped, io.EOF) }, ""},
		{func(t testing.TB) bool { return assert.ErrorIs(t, nil, io.EOF) }, "got error <nil>, want EOF"},
		{func(t testing.TB) bool { return assert.ErrorContains(t, wrapped, "read", "EOF") }, ""},
		{func(t testing.TB) bool { return assert.ErrorContains(t, nil, "a") }, `no error, want one with ["a"]`},
		{func(t testing.TB) bool { return assert.ErrorContains(t, errors.New("b"), "a") }, "[\"a\"] are not in\nb"},
		{func(t testing.TB) bool { return assert.Contains(t, "ab", "a", "b") }, ""},
		{func(t testing.TB) bool { return assert.Contains(t, "ab", "a", "c") }, "[\"c\"] are not in\nab"},
		{func(t testing.TB) bool { return assert.NotContains(t, "ab", "c") }, ""},
		{func(t testing.TB) bool { return assert.NotContains(t, "ab", "a") }, "\"a\" is in\nab"},
	} {
		r := &recorder{TB: t}
		if passed := tc.check(r); r.text != tc.text || passed != (tc.text == "") {
			t.Errorf("passed %t with %q, want %q", passed, r.text, tc.text)
		}
	}
	r := &recorder{TB: t}
	if assert.NoDiff(r, 1, 2) || r.text == "" {
		t.Error("1 and 2 do not differ")
	}
}
