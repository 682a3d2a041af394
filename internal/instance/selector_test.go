package instance_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pdmesh/pdmesh/internal/instance"
)

// Equivalent selectors share a queue.
func TestQueueName(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"":                               "m",
		"tier == stable":                 "m{tier=stable}",
		"rack in (4, 3),tier=stable":     "m{rack in (3,4),tier=stable}",
		"tier in (stable),rack in (3,4)": "m{rack in (3,4),tier=stable}",
		"tier != a, rack notin (4,3)":    "m{rack notin (3,4),tier!=a}",
		"!tier,tier notin (a),rack":      "m{!tier,rack,tier!=a}",
	} {
		var labels instance.Selector
		if text != "" {
			var err error
			labels, err = instance.ParseSelector(text)
			require.NoError(t, err)
		}
		got := instance.QueueName("m", labels)
		assert.True(t, got == want && instance.QueuedModel(got) == "m", "%s: %s, want %s", text, got, want)
	}
}
