package pdctl_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pdmesh/pdmesh/sim/testkit"
)

// An operator's weight overrides that of the record, remains when
// the instance is removed and allowed again, and can be lifted.
func TestWeight(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	const k, other = "10.0.0.1:8200", "10.0.0.2:8200"
	r.want(1, "decode/"+k+": failed: there is no such instance; see pdctl list\n", "weight", "decode", k, "50")
	r.put("/pd/decode/"+k, `{"v":1,"state":"ready","models":["m"],"weight":70}`)
	r.put("/pd/decode/"+other, `{"v":1,"state":"ready","models":["m"]}`)

	weights := func(want ...int) {
		t.Helper()
		listed := r.listings().Instances
		require.Equal(t, len(want), len(listed), listed)
		for i, in := range listed {
			switch {
			case in.Weight == nil && want[i] == -1:
			case in.Weight == nil || *in.Weight != want[i]:
				t.Errorf("%s has weight %v, want %d", in.Address, in.Weight, want[i])
			}
		}
	}
	weights(70, -1)
	r.want(0, "decode/"+k+": weight override removed\n", "weight", "decode", k, "default")
	r.want(0, "decode/"+k+": weight 300\ndecode/"+other+": weight 300\n", "weight", "decode", k, other, "300", "--reason", "bigger")
	weights(300, 300)
	r.want(0, "decode/"+other+": weight 0\n", "weight", "decode", other, "0")
	weights(300, 0)
	testkit.Contains(t, r.ok("list"), "WEIGHT", "300")
	testkit.Contains(t, r.ok("get", "decode/"+other), `"weight":0`, "override")

	// The weight is stored next to other intents.
	r.want(0, removed("decode", k), "remove", "decode", k, "--reason", "disks")
	r.want(0, "decode/"+k+": weight 20\n", "weight", "decode", k, "20")
	if removed := r.listings().Removed; len(removed) != 1 || removed[0].Reason != "disks" {
		t.Errorf("%+v", removed)
	}
	r.put("/pd/decode/"+k, `{"v":1,"state":"ready","models":["m"],"weight":70}`)
	assert.EqualValues(t, "removed", r.listings().Instances[0].Intent)
	r.want(0, "decode/"+k+": allowed; proxies use it again when it registers\n", "allow", "decode", k)
	weights(20, 0)
	r.want(0, "decode/"+k+": weight override removed\ndecode/"+other+": weight override removed\n", "weight", "decode", k, other, "default")
	weights(70, -1)
	_, out, _ := r.run("get", "decode/"+k)
	assert.NotContains(t, out, "override")

	for _, args := range [][]string{{k, "-1"}, {k, "1.5"}, {k, "half"}, {k, other}, {"50"}} {
		r.want(2, "", append([]string{"weight", "decode"}, args...)...)
	}
	r.put("/pd/override/decode/"+k, `{"v":1,"state":"sleep"}`)
	errs, code := func() (string, int) { code, out, _ := r.run("weight", "decode", k, "5"); return out, code }()
	assert.True(t, code == 1 && strings.Contains(errs, "sleep"), "%d %q", code, errs)
}
