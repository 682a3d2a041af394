package instance_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/assert"

	"github.com/pdmesh/pdmesh/internal/instance"
)

// The second server of a group has its ranks 2 and 3, and requests to that server name them 0 and 1.
func TestLocalRanks(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name string
		size int
		ids  map[string]string
		want []string
	}{
		{"one engine", 0, map[string]string{"0": "a"}, []string{"a", ""}},
		{"all ranks behind one address", 2, map[string]string{"0": "a", "1": "b"}, []string{"a", "b", ""}},
		{"the second server of a group", 2, map[string]string{"2": "c", "3": "d"}, []string{"c", "d", ""}},
		{"beyond nine", 2, map[string]string{"9": "j", "10": "k"}, []string{"j", "k"}},
		{"each rank has its own server", 1, map[string]string{"3": "d"}, []string{"d", ""}},
		{"one is not known", 3, map[string]string{"1": "b", "2": "c"}, []string{"", "b", "c"}},
		{"none is known", 2, nil, []string{"", ""}},
		{"no numbers", 2, map[string]string{"x": "a", "y": "b"}, []string{"", ""}},
	} {
		in := &instance.Instance{Record: instance.Record{DPSize: tc.size, EngineIDs: tc.ids}}
		var got []string
		for rank := range tc.want {
			got = append(got, in.EngineID(rank))
		}
		d := cmp.Diff(tc.want, got)
		assert.Equal(t, "", d, "%s: %s", tc.name, d)
	}
}
