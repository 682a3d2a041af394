package e2e_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/sim/fleet"
	"github.com/pdmesh/pdmesh/sim/testkit"
	"github.com/pdmesh/pdmesh/test/harness"
)

// adapterRig is a proxy with pairs of engines that are registered in different ways.
type adapterRig struct {
	*testing.T
	fleet *fleet.Fleet
	proxy *fleet.Proxy
	dir   string // directory from which every adapter is loaded
	key   string
}

func newAdapterRig(t *testing.T) *adapterRig {
	return &adapterRig{T: t, fleet: newFleet(t), dir: t.TempDir(), key: adminKey}
}

// engines starts a prefill and a decode engine, with agents if etcd endpoints are given.
func (r *adapterRig) engines(name string, etcd []string, args ...string) (pair map[instance.Role]*fleet.Node) {
	r.Helper()
	pair = map[instance.Role]*fleet.Node{}
	for _, role := range instance.Roles() {
		n, err := r.fleet.StartNode(r.Context(), fleet.NodeSpec{
			Name: name + "-" + string(role), Role: role, Connector: "nixl", Model: model, Etcd: etcd, EngineArgs: append([]string{"--runtime-lora"}, args...),
		})
		require.NoError(r, err)
		pair[role] = n
	}
	return pair
}

// send sends a JSON request with the admin key.
func (r *adapterRig) send(method, url string, body any) (status int, header http.Header, answer string) {
	r.Helper()
	raw, err := json.Marshal(body)
	require.NoError(r, err)
	resp, text, err := harness.Send(r.Context(), method, url, string(raw), "X-Api-Key", r.key, "X-Pd-Trace", "1")
	require.NoError(r, err)
	return resp.StatusCode, resp.Header, text
}

// load loads an adapter on a server: an engine, or the proxy, which forwards it to all engines.
func (r *adapterRig) load(url, name string) {
	r.Helper()
	if status, _, text := r.send(http.MethodPost, url+"/v1/load_lora_adapter", map[string]string{"lora_name": name, "lora_path": r.dir}); status != http.StatusOK {
		r.Fatalf("load %s at %s: %d %s", name, url, status, text)
	}
}

func (r *adapterRig) unload(url, name string) {
	r.Helper()
	if status, _, text := r.send(http.MethodPost, url+"/v1/unload_lora_adapter", map[string]string{"lora_name": name}); status != http.StatusOK {
		r.Fatalf("unload %s at %s: %d %s", name, url, status, text)
	}
}

// ask sends a completion request for a model to the proxy.
func (r *adapterRig) ask(name string) (status int, header http.Header, answer string) {
	r.Helper()
	return r.send(http.MethodPost, r.proxy.URL()+"/v1/completions", map[string]any{"model": name, "prompt": "tell me of the sea " + name, "max_tokens": 4})
}

// served fails the test unless a request for a model is served through prefill and decode.
func (r *adapterRig) served(name string) http.Header {
	r.Helper()
	status, header, text := r.ask(name)
	if status != http.StatusOK || header.Get("X-PD-Decode-Only") != "" || !strings.Contains(text, `"model":"`+name+`"`) {
		r.Fatalf("%s: %d %v %s", name, status, header, text)
	}
	return header
}

// awaitServed waits until a request for a model is answered.
func (r *adapterRig) awaitServed(name string) {
	r.Helper()
	testkit.Eventually(r, time.Minute, func() error {
		if status, _, text := r.ask(name); status != http.StatusOK {
			return fmt.Errorf("%d %s", status, text)
		}
		return nil
	})
}

// names returns the models that the proxy lists.
func (r *adapterRig) names() (names []string) {
	r.Helper()
	status, _, text := r.send(http.MethodGet, r.proxy.URL()+"/v1/models", nil)
	var list struct{ Data []struct{ ID string } }
	if err := json.Unmarshal([]byte(text), &list); err != nil || status != http.StatusOK {
		r.Fatalf("%d %v: %.200s", status, err, text)
	}
	for _, m := range list.Data {
		names = append(names, m.ID)
	}
	return names
}

// listed returns an error unless n instances of /status list a model.
func (r *adapterRig) listed(name string, want int) error {
	status, err := r.proxy.Status(r.Context())
	if err != nil {
		return err
	}
	n := 0
	for _, l := range status.Instances {
		if slices.Contains(l.Models, name) {
			n++
		}
	}
	if n != want {
		return fmt.Errorf("%d instances list %s, want %d", n, name, want)
	}
	return nil
}

func nodeURL(n *fleet.Node) string { return "http://" + n.Address }

// A LoRA adapter that is loaded while the proxy runs is served at once, however its engines are registered
// and wherever it is loaded. An unloaded adapter is no longer served, which does not count as a failure of an
// engine.
func TestAdaptersLoadedAtRunTime(t *testing.T) {
	t.Parallel()
	r := newAdapterRig(t)
	ctx := t.Context()
	byFlags := r.engines("flags", nil)
	var err error
	r.proxy, err = r.fleet.StartProxy(ctx, fleet.ProxySpec{Name: "proxy", AdminKey: r.key, Args: []string{
		"--connector", "nixl", "--prefill", byFlags[instance.Prefill].Address, "--decode", byFlags[instance.Decode].Address,
	}})
	require.NoError(t, err)
	pairs := map[string]map[instance.Role]*fleet.Node{
		"flags": byFlags, "pdctl": r.engines("pdctl", nil), "route": r.engines("route", nil), "bare": r.engines("bare", nil), "agent": r.engines("agent", r.proxy.Etcd),
	}
	for _, role := range instance.Roles() {
		runProgram(t, "pdctl", "add", string(role), pairs["pdctl"][role].Address, "--etcd-endpoints", r.proxy.Etcd[0])
		if status, _, text := r.send(http.MethodPost, r.proxy.URL()+"/instances/add", map[string]string{"type": string(role), "instance": pairs["route"][role].Address}); status != http.StatusOK {
			t.Fatalf("%d %s", status, text)
		}
		require.NoError(t, gatewayPut(ctx, r.proxy.Etcd[0], "/pd/"+string(role)+"/"+pairs["bare"][role].Address, ""))
	}
	require.NoError(t, r.proxy.WaitFor(ctx, len(pairs), len(pairs)))

	// Loaded on the engines directly: the first request that names it discovers it.
	for how, pair := range pairs {
		name := "only-" + how
		for _, role := range instance.Roles() {
			r.load(nodeURL(pair[role]), name)
		}
		if how == "agent" { // the agent's probe adds it to the record, without a request
			testkit.Eventually(t, time.Minute, func() error { return r.listed(name, 2) })
		}
		header := r.served(name)
		if p, d := header.Get("X-PD-Prefill"), header.Get("X-PD-Decode"); p != pair[instance.Prefill].Address || d != pair[instance.Decode].Address {
			t.Errorf("%s was served by %s and %s", name, p, d)
		}
	}

	// Loaded on all engines through the proxy: the proxy knows it when the response arrives.
	r.load(r.proxy.URL(), "everywhere")
	assert.NoError(t, r.listed("everywhere", 2*len(pairs)))
	used := map[string]bool{}
	for range 4 * len(pairs) {
		header := r.served("everywhere")
		used[header.Get("X-PD-Decode")] = true
	}
	assert.Equal(t, len(pairs), len(used), "%d decode instances of %d have served it", len(used), len(pairs))
	if names := r.names(); !slices.Contains(names, "everywhere") || !slices.Contains(names, "only-bare") || len(names) != len(pairs)+2 {
		t.Errorf("the proxy lists %q", names)
	}

	// Unloaded on some engines directly: the others serve it, and no instance is ejected.
	for _, how := range []string{"flags", "agent"} {
		for _, role := range instance.Roles() {
			r.unload(nodeURL(pairs[how][role]), "everywhere")
		}
	}
	for range 6 * len(pairs) {
		if status, _, text := r.ask("everywhere"); status != http.StatusOK {
			t.Fatalf("%d %s", status, text)
		}
	}
	status, err := r.proxy.Status(ctx)
	require.NoError(t, err)
	for _, l := range status.Instances {
		assert.True(t, l.View == "", "%s %s is %s: %s", l.Role, l.Address, l.View, l.Reason)
	}
	assert.True(t, len(status.PrefillNodes) == len(pairs) && len(status.DecodeNodes) == len(pairs),
		"%d prefill and %d decode instances remain", len(status.PrefillNodes), len(status.DecodeNodes))
	for _, how := range []string{"pdctl", "route", "bare"} {
		for _, role := range instance.Roles() {
			r.unload(nodeURL(pairs[how][role]), "everywhere")
		}
	}
	if status, _, text := r.ask("everywhere"); status != http.StatusNotFound {
		t.Errorf("unloaded everywhere: %d %s", status, text)
	}
	testkit.Until(t, time.Minute, r.names, func(names []string) bool { return !slices.Contains(names, "everywhere") })
	r.served(model)
}

// More adapters than a record can hold, and a model list of more than 1 MiB, are all served.
func TestManyAdapters(t *testing.T) {
	t.Parallel()
	for _, n := range []int{401, 2500} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			t.Parallel()
			r := newAdapterRig(t)
			ctx := t.Context()
			names := make([]string, n)
			for i := range names {
				names[i] = fmt.Sprintf("tenant-%04d-with-a-name-of-thirty-odd-bytes-%04d", i, n)
			}
			list := "--lora-modules=" + strings.Join(names, ",")
			var err error
			r.proxy, err = r.fleet.StartProxy(ctx, fleet.ProxySpec{Name: "proxy", AdminKey: r.key, Args: []string{"--connector", "nixl"}})
			require.NoError(t, err)
			added, bare := r.engines("added", nil, list), r.engines("bare", nil, list)
			r.engines("agent", r.proxy.Etcd, list)
			for _, role := range instance.Roles() {
				runProgram(t, "pdctl", "add", string(role), added[role].Address, "--etcd-endpoints", r.proxy.Etcd[0])
				require.NoError(t, gatewayPut(ctx, r.proxy.Etcd[0], "/pd/"+string(role)+"/"+bare[role].Address, ""))
			}
			require.NoError(t, r.proxy.WaitFor(ctx, 3, 3))
			for _, i := range []int{0, 100, n / 2, n - 1} {
				r.served(names[i])
			}
			used := map[string]bool{}
			testkit.Eventually(t, time.Minute, func() error {
				used[r.served(names[n-1]).Get("X-PD-Decode")] = true
				if len(used) < 3 {
					return fmt.Errorf("%d decode instances of 3 have served the last adapter", len(used))
				}
				return nil
			})
			got := r.names()
			assert.Equal(t, n+1, len(got), "the proxy lists %d models of %d", len(got), n+1)
			if status, _, text := r.ask("tenant-none"); status != http.StatusNotFound {
				t.Errorf("an unknown one: %d %.200s", status, text)
			}
		})
	}
}
