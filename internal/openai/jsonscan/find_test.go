package jsonscan_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pdmesh/pdmesh/internal/openai/jsonscan"
)

func TestTopLevel(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name, body, want string
		bad              bool
	}{
		{"present", `{"a":1,"k": {"x": 9007199254740993} }`, `{"x": 9007199254740993}`, false},
		{"absent", `{"a":1}`, ``, false},
		{"null", `{"k":null}`, ``, false},
		{"nested only", `{"a":{"k":1}}`, ``, false},
		{"twice", `{"k":1,"k":2}`, `2`, false},
		{"no object", `[1]`, ``, true},
		{"cut", `{"k":1`, ``, true},
		{"more", `{"k":1}{}`, ``, true},
		{"empty", ``, ``, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			got, err := jsonscan.TopLevel([]byte(tc.body), "k")
			require.Equal(t, tc.want, string(got), err)
			require.Equal(t, tc.bad, err != nil, err)
		})
	}
}
