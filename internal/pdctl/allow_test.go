package pdctl_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/internal/pdctl/show"
)

// Allow lifts a removal and creates nothing in its place; list shows the removals.
func TestAllow(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	const k = "10.0.0.1:8200"
	r.want(1, "decode/"+k+": failed: it is not removed; nothing changed\n", "allow", "decode", k)
	r.put("/pd/decode/"+k, `{"v":1,"state":"ready","models":["m"]}`)
	r.want(0, removed("decode", k), "remove", "decode", k, "--reason", "new \x1b[31mdisks")

	_, out, _ := r.run("list")
	if want := "removed: decode/" + k + " by "; !strings.Contains(out, want) || !strings.Contains(out, "disks\n") || strings.Contains(out, "\x1b") {
		t.Errorf("list shows %q", out)
	}
	assert.NotContains(t, r.ok("list", "prefill"), k)
	removed := r.listings().Removed
	require.True(t, len(removed) == 1 && removed[0].By != "" && removed[0].Revision != 0, "%+v", removed)
	removed[0].By, removed[0].Revision, removed[0].Reason = "", 0, ""
	assert.Empty(t, cmp.Diff([]show.Removal{{Role: instance.Decode, Address: k}}, removed))

	// An instance that registers in spite of its removal is listed once, with the intent.
	r.put("/pd/decode/"+k, `{"v":1,"state":"ready","models":["m"]}`)
	if got := r.listings(); len(got.Removed) != 0 || len(got.Instances) != 1 || got.Instances[0].Intent != instance.Removed {
		t.Errorf("%+v", got)
	}
	r.want(0, "decode/"+k+": allowed; proxies use it again when it registers\n", "allow", "decode", k, "--reason", "done")
	got := r.listings()
	assert.True(t, len(got.Removed) == 0 && len(got.Instances) == 1 && got.Instances[0].Intent == "", "%+v", got)
	assert.Contains(t, r.want(2, "", "allow", "decode", "10.0.0.1"), "nothing was done")
}

// List prints the newest removals; its JSON has all of them, as input for allow.
func TestList_ManyRemovals(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	allow, want := []string{"allow"}, ""
	for i := range 30 {
		k := fmt.Sprintf("decode/10.0.0.%d:8200", i)
		r.put("/pd/override/"+k, `{"v":1,"state":"removed"}`)
		if allow = append(allow, k); i >= 10 {
			want = "\nremoved: " + k + want
		}
	}
	want += "\nremoved: 10 older; pdctl list -o json shows all, pdctl allow ends them\n"
	_, out, _ := r.run("list")
	assert.True(t, strings.HasSuffix(out, want) && strings.Count(out, "removed: ") == 21, "list shows %q", out)
	assert.Equal(t, 30, len(r.listings().Removed), "removals in the JSON")
	code, _, errs := r.run(allow...)
	assert.True(t, code == 0 && len(r.listings().Removed) == 0, "exit %d: %s", code, errs)
}

// Removing a second key of an instance does not create a removal: no agent is refused.
func TestRemoveSecondKey(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.put("/pd/decode/node7:8200", `{"models":["m"]}`)
	r.put("/pd/decode/Node7:8200", `{"models":["m"]}`)
	r.want(0, "decode/Node7:8200: removed\n", "remove", "--selector", "state=rejected")
	if got := r.listings(); len(got.Instances) != 1 || got.Instances[0].Address != "node7:8200" || len(got.Removed) != 0 {
		t.Errorf("%+v", got)
	}
}
