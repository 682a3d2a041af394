package watch

import (
	"bytes"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/pdmesh/pdmesh/internal/discovery/verify"
	"github.com/pdmesh/pdmesh/internal/instance"
)

// FuzzMembership plays a history of any keys and values. The proxy, which applies single changes,
// and pdctl, which lists, must see the same fleet; every unused instance must have a reason.
//
// A history is lines: "+path value" puts, "-path" deletes, "!" lists again.
func FuzzMembership(f *testing.F) {
	for _, s := range []string{
		"+prefill/10.0.0.1:1 {\"models\":[\"m\"]}\n+override/prefill/10.0.0.1:1 {\"state\":\"drain\"}\n-override/prefill/10.0.0.1:1",
		"+decode/localhost:1 \n+decode/127.0.0.1:1 {\n-decode/127.0.0.1:1\n+decode/LOCALHOST:1 x",
		"+pending/decode/10.0.0.1:1 {}\n!\n+decode/10.0.0.1:1 {\"kv_role\":\"kv_both\"}\n+prefill/10.0.0.1:1\n-decode/10.0.0.1:1",
		"+prefill/a:1 {\"models\":[\"m\"]}\n+prefill/a:1 {bad\n+prefill/a:1 {}\n!",
		"+prefill/\x1b[2J x\n+decode/0.0.0.0:1\n+prefill/a/b:1\n+override/decode/[::1]:1 {\"state\":\"removed\"}\n+other/x 1\n+meta/schema {\"v\":9}",
		"+override/prefill/10.0.0.1:1 {\"weight\":0}\n+prefill/10.0.0.1:1 {\"weight\":5}\n+override/prefill/10.0.0.1:1 no\n!\n-prefill/10.0.0.1:1",
	} {
		f.Add([]byte(s), "m")
		f.Add([]byte(s), "")
	}
	f.Fuzz(func(t *testing.T, history []byte, model string) {
		facts := verify.Facts{Model: model}
		followed := tableOf(t)
		layout := followed.layout
		live := map[string]*mvccpb.KeyValue{}
		rev := int64(1)
		followed.load(nil, rev)
		for _, line := range bytes.SplitN(history, []byte("\n"), 200) {
			if len(line) == 0 {
				continue
			}
			rev++
			path, value, _ := bytes.Cut(line[1:], []byte(" "))
			key := layout.Root() + string(path)
			old := live[key]
			switch line[0] {
			case '+':
				kv := &mvccpb.KeyValue{Key: []byte(key), Value: value, CreateRevision: rev, ModRevision: rev, Version: 1}
				if old != nil {
					kv.CreateRevision, kv.Version = old.CreateRevision, old.Version+1
				}
				live[key] = kv
				followed.put(kv)
				followed.put(kv) // a replay changes nothing
			case '-':
				delete(live, key)
				followed.remove(&mvccpb.KeyValue{Key: []byte(key), ModRevision: rev})
			case '!':
				followed.load(keyValues(live), rev)
			}
			followed.revision = rev
			view := followed.snapshot(facts).All()
			for _, in := range view {
				if in.View == instance.Rejected && in.Reason == "" || instance.Printable(in.Reason, 0) != in.Reason {
					t.Fatalf("%q: %s is %s because of %q", history, in.Key, in.View, in.Reason)
				}
				if in.Usable() && (in.Intent != "" || !in.ServesModel(model) && !(&instance.Facts{Models: in.Record.Models}).Serves(model, false)) {
					t.Fatalf("%q: %+v is used", history, in)
				}
			}
		}
		// A proxy that lists for the first time has no last good values. It
		// gets those of the other proxy, as for a proxy that lists again.
		before := instance.NewSnapshot(rev, followed.snapshot(facts).All())
		listed := BuildAfter(layout, keyValues(live), rev, before, facts)
		if got, want := shown(before.All()), shown(listed.All()); !slices.Equal(got, want) && !fallsBack(before) {
			t.Fatalf("%q\nfollowed %s\nlisted   %s", history, got, want)
		}
	})
}

// fallsBack reports whether a last good value is active, which a reader that has not seen it cannot know.
func fallsBack(s *instance.Snapshot) bool {
	return slices.ContainsFunc(s.All(), func(in *instance.Instance) bool { return strings.Contains(in.Reason, "last good value") })
}

func keyValues(live map[string]*mvccpb.KeyValue) []*mvccpb.KeyValue {
	return slices.Collect(maps.Values(live))
}

func shown(all []*instance.Instance) []string {
	out := make([]string, len(all))
	for i, in := range all {
		out[i] = fmt.Sprintf("%s %s/%s/%s verified %v weight %v at %d/%d: %s\n", in.Key, in.Record.State, in.View, in.Intent, in.Verified, weight(in), in.CreateRevision, in.ModRevision, in.Reason)
	}
	return out
}

func weight(in *instance.Instance) int {
	if in.Record.Weight == nil {
		return -1
	}
	return *in.Record.Weight
}
