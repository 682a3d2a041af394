package verify_test

import (
	"slices"
	"testing"

	"github.com/pdmesh/pdmesh/internal/discovery/verify"
	"github.com/pdmesh/pdmesh/internal/instance"
)

// The list of models that an engine reported replaces that of the record,
// until an agent writes the record again or the engine restarts.
func TestModelsReplaceTheRecord(t *testing.T) {
	t.Parallel()
	k := instance.Key{Role: instance.Decode, Address: "10.0.0.1:8000"}
	read := []string{"base", "late"}
	for name, tc := range map[string]struct {
		change func(*instance.Instance)
		models []string
	}{
		"static":                       {func(in *instance.Instance) { in.Lease = 0 }, read},
		"static, written again":        {func(in *instance.Instance) { in.Lease = 0; in.ModRevision++ }, read},
		"leased by curl, again":        {func(in *instance.Instance) { in.Lease = 2; in.ModRevision++ }, read},
		"of an agent":                  {func(in *instance.Instance) { in.Record.Source = "agent" }, read},
		"of an agent, written again":   {func(in *instance.Instance) { in.Record.Source = "agent"; in.ModRevision++ }, []string{"base"}},
		"of an agent, in a wiped etcd": {func(in *instance.Instance) { in.Record.Source, in.Lease = "agent", 2 }, []string{"base"}},
		"truncated, written again": {func(in *instance.Instance) {
			in.Record.Source, in.Record.ModelsTruncated = "agent", true
			in.ModRevision++
		}, read},
		"restarted": {func(in *instance.Instance) { in.Record.ID = "2" }, []string{"base"}},
	} {
		in := &instance.Instance{Key: k, ModRevision: 4, Lease: 1, Record: instance.Record{ID: "1", State: instance.Ready, Models: []string{"base"}}}
		f := verify.Facts{Probing: true, Models: map[instance.Key]*verify.Models{k: {Incarnation: "1", ModRevision: 4, Lease: 1, Names: read}}}
		tc.change(in)
		f.Apply(in, nil, func(string, ...any) {})
		if !in.Verified || !slices.Equal(in.Record.Models, tc.models) || in.ModelsRead != (len(tc.models) == 2) || in.Record.ModelsTruncated && in.ModelsRead {
			t.Errorf("%s: %+v", name, in)
		}
	}
}
