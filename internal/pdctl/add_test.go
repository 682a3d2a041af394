package pdctl_test

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pdmesh/pdmesh/internal/discovery/store"
	"github.com/pdmesh/pdmesh/internal/discovery/watch"
	"github.com/pdmesh/pdmesh/internal/engine/vllm"
	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/sim/fakevllm"
	"github.com/pdmesh/pdmesh/sim/testkit"
	"github.com/pdmesh/pdmesh/sim/testkit/members"
)

func TestAddListRemove(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	p, d, dead := startEngine(t, "org/m"), startEngine(t, "org/m"), testkit.FreePort(t)

	r.want(0, "No instances below /pd/. Add one with: pdctl add prefill host:port\n", "list")
	r.want(0, "prefill/"+p+": added, serves org/m\n", "add", "prefill", p, "--model", "m", "--connector", "nixl")
	r.want(0, "prefill/"+p+": already exists; not changed\n", "add", "prefill", p)
	errs := r.want(1, "decode/"+d+": added, serves org/m\n"+
		"decode/"+dead+": failed: GET http://"+dead+"/v1/models: connection refused: is vLLM running at "+dead+"?; start it, or use --wait to add it when it answers\n",
		"add", "decode", d, dead)
	assert.Contains(t, errs, "1 of 2 failed")

	got := r.listings()
	require.True(t, len(got.Instances) == 2 && got.Revision != 0, "%+v", got)
	first := got.Instances[0]
	want := instance.Listing{
		Role: instance.Prefill, Address: p, Status: "ready", State: instance.Ready, Static: true, ID: first.ID,
		Models: []string{"org/m"}, Connector: "nixl", Source: "admin", Version: "0.12.0", Revision: first.Revision,
	}
	assert.Empty(t, cmp.Diff(want, first))
	_, table, _ := r.run("list", "decode")
	assert.NotContains(t, table, p)
	assert.Contains(t, table, "decode  "+d+"  ready  -    -          100     static  org/m   -")

	r.want(0, removed("prefill", p), "remove", "prefill", p, "prefill/"+p, "--reason", "test")
	r.want(1, "prefill/"+p+": failed: there is no such instance; see pdctl list\n", "remove", "prefill", p)
	assert.Len(t, r.listings().Instances, 1, "after removal")
	// Add lifts the removal.
	r.want(0, "prefill/"+p+": added, serves org/m\n", "add", "prefill", p)
	assert.EqualValues(t, "", r.listings().Instances[0].Intent, "after adding again")
}

// The record has the KV transfer that the engine reports, so that
// proxies can warn if another dialect is configured.
func TestAdd_RecordsNIXLTransfer(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	d := fakevllm.StartTest(t, fakevllm.Options{Models: []string{"m"}, Mode: fakevllm.NIXL}).Address()
	r.want(0, "decode/"+d+": added, serves m\n", "add", "decode", d)
	got, err := r.cli.Get(t.Context(), "/pd/decode/"+d)
	assert.True(t, err == nil && len(got.Kvs) == 1 && strings.Contains(string(got.Kvs[0].Value), `"transfer":"nixl"`),
		"%v, %v", got, err)
}

func TestAddJSON(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	p, dead := startEngine(t, "m"), testkit.FreePort(t)
	code, out, errs := r.run("add", "prefill", p, dead, "-o", "json")
	var got struct {
		Results []struct {
			Role, Address, Outcome, Error string
			Models                        []string
		}
	}
	err := json.Unmarshal([]byte(out), &got)
	require.True(t, err == nil && code == 1 && len(got.Results) == 2, "%v, exit %d\n%s%s", err, code, out, errs)
	if a, b := got.Results[0], got.Results[1]; a.Outcome != "added" || a.Models[0] != "m" || b.Outcome != "failed" || !strings.Contains(b.Error, "connection refused") {
		t.Errorf("%s", out)
	}
}

func TestAddWrongModelAndKeys(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	other, secret := startEngine(t, "org/other"), startEngine(t, "secret-model")
	r.want(1, "prefill/"+other+": failed: serves org/other, not m: start it with that model, or leave out --model\n",
		"add", "prefill", other, "--model", "m", "--wait")
	r.want(1, "prefill/"+other+": failed: serves org/other, not other: start it with that model, or leave out --model\n",
		"add", "prefill", other, "--model", "other", "--strict-model")
	// Waiting does not correct a missing API key.
	r.want(1, "prefill/"+secret+": failed: GET http://"+secret+"/v1/models: HTTP 401: the engine wants an API key (--engine-api-key)\n",
		"add", "prefill", secret, "--wait")
	// Waiting does not make a proxy an engine.
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusLoopDetected) }))
	t.Cleanup(srv.Close)
	proxy := strings.TrimPrefix(srv.URL, "http://")
	r.want(1, "prefill/"+proxy+": failed: GET http://"+proxy+"/v1/models: not an answer of vLLM: "+proxy+" is a pdmesh proxy; use the address of vLLM\n",
		"add", "prefill", proxy, "--wait")
	code, out, errs := r.runEnv(map[string]string{"PD_ETCD_ENDPOINTS": r.etcd.Endpoint(), "OPENAI_API_KEY": "k"}, "add", "prefill", secret)
	assert.Equal(t, 0, code, "with the key\n%s%s", out, errs)
	assert.Len(t, r.listings().Instances, 1)
}

func TestAdd_ExistingInstance(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	p := startEngine(t, "m")
	r.put("/pd/prefill/"+p, "{broken")
	_, out, _ := r.run("add", "prefill", p)
	testkit.Contains(t, out, "failed: already exists, but is rejected: broken JSON", "pdctl remove")
	r.put("/pd/decode/"+p, `{"models":["m"],"state":"down"}`)
	r.want(0, "decode/"+p+": already exists (down); not changed\n", "add", "decode", p)
	r.want(0, "decode/"+p+": already exists (down); not changed\n", "add", "decode", p, "--wait", "--reason=x")
}

func TestAddNoVerify(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	dead := testkit.FreePort(t)
	r.want(0, "decode/"+dead+": added without verification; proxies use it when it answers\n", "add", "decode", dead, "--no-verify")
	got := r.listings()
	assert.True(t, len(got.Instances) == 1 && got.Instances[0].View == instance.Unverified && got.Instances[0].Static,
		"%+v", got)
}

func TestAddWait(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	dead := testkit.FreePort(t)
	errs := r.want(0, "Waiting for decode/"+dead+": GET http://"+dead+"/v1/models: connection refused: is vLLM running at "+dead+"?\n",
		"add", "decode", dead, "--wait", "--model", "m")
	assert.Contains(t, errs, "no proxy uses this etcd now")
	got := r.listings()
	require.Len(t, got.Instances, 1)
	require.Equal(t, instance.Pending, got.Instances[0].View)
	_, out, _ := r.run("get", "decode/"+dead)
	if !strings.HasPrefix(out, "state     pending\nreason    waits for the instance to answer\n\npending\n  key       /pd/pending/decode/"+dead+"\n") || !strings.Contains(out, `"model":"m"`) {
		t.Errorf("get:\n%s", out)
	}
	// A pending add with a time limit has a lease; another wait replaces it.
	r.run("add", "decode", dead, "--wait=10m")
	assert.Contains(t, r.ok("get", "decode", dead, "-o", "json"), `"granted_ttl": 600`)
	if out := r.ok("list"); !regexp.MustCompile(`waits for the instance to answer; ends in (9|10)m`).MatchString(out) {
		t.Errorf("list:\n%s", out)
	}
	r.want(0, removed("decode", dead), "remove", "decode", dead)
	assert.Equal(t, 0, pendings(r), "pending after removal")
}

func pendings(r *rig) (n int) {
	for _, in := range r.listings().Instances {
		if in.View == instance.Pending {
			n++
		}
	}
	return n
}

// promoter runs a watcher that verifies and promotes, as a proxy does.
func promoter(t *testing.T, r *rig) {
	t.Helper()
	layout := members.Layout(t)
	cli := r.etcd.Client(t)
	w := watch.New(cli, watch.Options{
		Layout: layout, Prober: vllm.New(""), WaitingInterval: 50 * time.Millisecond, Writer: store.New(cli, layout, "test").Watch,
	})
	members.Run(t, w.Run)
}

func TestAddWaitBlock(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	promoter(t, r)
	late, removed := testkit.FreePort(t), testkit.FreePort(t)
	out, stop := r.background("add", "prefill", late, removed, "--wait", "--block")
	testkit.EventuallyEqual(t, time.Minute, func() int { return pendings(r) }, 2)
	names, stopNames := r.background("add", "prefill", late, removed, "--wait", "--block", "-o", "name")
	testkit.Eventually(t, time.Minute, func() error { return names.has("no proxy uses this etcd now") })
	srv := &http.Server{Addr: late, Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, `{"data":[{"id":"m"}]}`)
	})}
	served := make(chan error, 1)
	go func() { served <- srv.ListenAndServe() }()
	t.Cleanup(func() { _ = srv.Close(); <-served })
	testkit.Eventually(t, time.Minute, func() error { return out.has("prefill/" + late + ": added\n") })
	code, _, errs := r.run("remove", "prefill", removed)
	require.Equal(t, 0, code, errs)
	testkit.Eventually(t, time.Minute, func() error {
		return out.has("prefill/" + removed + ": failed: the pending add has ended")
	})
	assert.Equal(t, 1, stop(false), "exit\n%s", out)
	if code := stopNames(false); code != 1 || strings.Count(names.String(), "prefill/"+late+"\n") != 1 || strings.Contains(names.String(), "prefill/"+removed+"\n") {
		t.Errorf("-o name: exit %d\n%s", code, names)
	}
}

func TestAddWaitBlockInterrupted(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	out, stop := r.background("add", "prefill", testkit.FreePort(t), "--wait", "--block")
	testkit.Eventually(t, time.Minute, func() error { return out.has("Waiting for") })
	code := stop(true)
	assert.True(t, code == 1 && out.has("the pending adds stay") == nil && pendings(r) == 1, "exit %d\n%s", code, out)

	// An interrupt also works during a call that etcd does not answer; programs get the results.
	line := testkit.StartLink(t, r.etcd.Endpoint())
	out, stop = r.background("add", "prefill", testkit.FreePort(t), "--wait", "--block", "-o", "json", "--etcd-endpoints", line.Address())
	testkit.Eventually(t, time.Minute, func() error { return out.has("no proxy uses this etcd now") })
	line.OneWay(testkit.ToClient)
	before := line.Passed(testkit.ToServer)
	testkit.EventuallyTrue(t, time.Minute, func() bool { return line.Passed(testkit.ToServer) != before }, "no call")
	if code := stop(true); code != 1 || out.has("the pending adds stay") != nil || out.has(`"outcome": "waiting"`) != nil {
		t.Errorf("exit %d\n%s", code, out)
	}
}
