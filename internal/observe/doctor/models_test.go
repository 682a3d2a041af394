package doctor

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/pdmesh/pdmesh/internal/instance"
)

// An adapter that a static instance has unloaded since its record was written is not a wrong model.
func TestMissingModel(t *testing.T) {
	t.Parallel()
	static := instance.Record{Source: "admin", Models: []string{"base", "late"}}
	agent := static
	agent.Source = instance.SourceAgent
	for name, tc := range map[string]struct {
		rec   instance.Record
		lease int64
		now   []string
		want  string
	}{
		"all there":              {static, 0, []string{"base", "late"}, ""},
		"static, one unloaded":   {static, 0, []string{"base"}, ""},
		"static, another model":  {static, 0, []string{"other"}, "base"},
		"of an agent, unloaded":  {agent, 7, []string{"base"}, "late"},
		"static, of an old file": {agent, 0, []string{"base"}, ""},
	} {
		in := &instance.Instance{Lease: tc.lease, Record: tc.rec}
		assert.Equal(t, tc.want, missing(in, instance.Facts{Models: tc.now}), name)
	}
}
