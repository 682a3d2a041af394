package pdctl_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// An engine in both roles is added and removed with one command.
func TestAddBoth(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	e := startEngine(t, "org/m")
	added := "prefill/" + e + ": added, serves org/m\ndecode/" + e + ": added, serves org/m\n"
	r.want(0, added, "add", "both", e, "--connector", "nixl")
	got := r.listings()
	require.Len(t, got.Instances, 2, "not one transaction")
	assert.Equal(t, got.Instances[1].Revision, got.Instances[0].Revision, "not one transaction")
	assert.Contains(t, r.ok("get", "prefill", e), "kv_both")
	r.want(0, strings.ReplaceAll(added, "added, serves org/m", "already exists; not changed"), "add", "both", e)
	r.want(0, removed("prefill", e), "remove", "prefill", e)
	r.want(0, added, "add", "both", e) // the missing key is added
	r.want(0, removed("prefill", e)+removed("decode", e), "remove", "both", e)
	assert.Len(t, r.listings().Instances, 0, "after removal")
	const allowed = ": allowed; proxies use it again when it registers\n"
	r.want(0, "prefill/"+e+allowed+"decode/"+e+allowed, "allow", "both", e)
	assert.Len(t, r.listings().Removed, 0, "after allow")
}

// Requests on an engine in both roles, which a load digest lists under each role, count once.
func TestInFlightOfBothRoles(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.put("/pd/proxies/a", `{"v":1,"id":"a","address":"127.0.0.1:1","applied":1}`)
	r.put("/pd/load/a", `{"v":1,"applied":1,"load":{"prefill/10.0.0.1:1":{"in_flight":3},"decode/10.0.0.1:1":{"in_flight":3},"prefill/10.0.0.2:1":{"in_flight":1}}}`)
	var status struct {
		Proxies []struct {
			Load struct {
				InFlight int64 `json:"in_flight"`
			}
		}
	}
	err := json.Unmarshal([]byte(r.ok("status", "-o", "json")), &status)
	assert.True(t, err == nil && status.Proxies[0].Load.InFlight == 4, "status: %+v (%v)", status, err)
	var top struct {
		Proxies []struct {
			InFlight int64 `json:"in_flight"`
		}
	}
	err = json.Unmarshal([]byte(r.ok("top", "-o", "json")), &top)
	assert.True(t, err == nil && top.Proxies[0].InFlight == 4, "top: %+v (%v)", top, err)
}

// A decode instance of LMCache's PD backend can be added without an agent.
func TestAddLMCacheDecode(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	e := startEngine(t, "org/m")
	r.want(0, "decode/"+e+": added, serves org/m\n", "add", "decode", e, "--connector", "lmcache",
		"--lmcache-init-port", "7300,7301", "--lmcache-alloc-port", "7400, 7401", "--lmcache-host", "10.0.0.8")
	_, out, _ := r.run("get", "decode", e)
	for _, want := range []string{`"lmcache_init":[7300,7301]`, `"lmcache_alloc":[7400,7401]`, `"receiver_host":"10.0.0.8"`} {
		assert.Contains(t, strings.Join(strings.Fields(out), ""), want,
			"the record lacks %s:\n%s", want, out)
	}
}

// The ranks of an engine without an agent are in its record, and in the list.
func TestAddRanks(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	e := startEngine(t, "org/m")
	r.want(0, "decode/"+e+": added, serves org/m\n", "add", "decode", e, "--dp-size", "4")
	got := r.listings()
	assert.True(t, len(got.Instances) == 1 && got.Instances[0].Ranks == 4, "%+v", got)
	assert.Contains(t, r.ok("list", "-o", "wide"), "RANKS")
	assert.Contains(t, r.ok("get", "decode", e), `"dp_size":4`)
}
