package instance_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/pdmesh/pdmesh/internal/instance"
)

func TestServes(t *testing.T) {
	t.Parallel()
	facts := instance.Facts{
		Models: []string{"Qwen/Qwen2.5-7B", "alias"},
		Roots:  []string{"/models/base-7b/", ""},
	}
	for _, tc := range []struct {
		want          string
		strict, match bool
	}{
		{"", true, true},
		{"Qwen/Qwen2.5-7B", true, true},
		{"alias", true, true},
		{"/models/base-7b/", true, true},
		{"/models/base-7b", true, false},
		{"/models/base-7b", false, true},
		{"Qwen2.5-7B", true, false},
		{"Qwen2.5-7B", false, true},
		{"/data/Qwen2.5-7B", false, true},
		{"Qwen", false, false},
		{"qwen2.5-7b", false, false},
		{"/", false, false},
		{"other", false, false},
	} {
		t.Run(fmt.Sprintf("%s strict=%v", tc.want, tc.strict), func(t *testing.T) {
			t.Parallel()
			assert.Equal(t, tc.match, facts.Serves(tc.want, tc.strict))
		})
	}
	assert.False(t, (&instance.Facts{Models: []string{"a/"}, Roots: []string{"/"}}).Serves("b/", false),
		"b/ matched a/")
}
