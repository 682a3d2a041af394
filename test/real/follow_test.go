package real_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pdmesh/pdmesh/internal/httpapi"
	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/internal/kvcache/kvevents"
	"github.com/pdmesh/pdmesh/sim/fleet"
	"github.com/pdmesh/pdmesh/sim/testkit"
)

// follows returns the proxy's status of the followed KV event publishers, by address.
func (r *rig) follows() (map[string]httpapi.KVEvents, error) {
	var st httpapi.Status
	if err := r.get(r.t.Context(), r.proxy.URL()+"/status", &st); err != nil {
		return nil, err
	}
	out := map[string]httpapi.KVEvents{}
	for _, k := range st.KVEvents {
		out[k.Instance] = k
	}
	return out, nil
}

// awaitFollowed waits until the proxy follows engines, whether they have published events or not.
func (r *rig) awaitFollowed(list []*engine) {
	r.t.Helper()
	for _, e := range list {
		r.awaitFollowState(e, 0, kvevents.Following, kvevents.Silent)
	}
}

// awaitFollowState waits until an engine is followed in one of some states and at least the given number of
// its blocks is known.
func (r *rig) awaitFollowState(e *engine, blocks int, states ...kvevents.State) {
	r.t.Helper()
	testkit.Eventually(r.t, patience, func() error {
		all, err := r.follows()
		if err != nil {
			return err
		}
		if k := all[e.address]; !slices.Contains(states, kvevents.State(k.State)) || k.Blocks < blocks {
			return fmt.Errorf("%+v", all)
		}
		return nil
	})
}

// awaitBlocks waits until the proxy follows an engine and knows exactly the given number of its blocks.
func (r *rig) awaitBlocks(e *engine, blocks int) {
	r.t.Helper()
	testkit.Eventually(r.t, patience, func() error {
		all, err := r.follows()
		if err != nil {
			return err
		}
		if k := all[e.address]; k.State != "following" || k.Blocks != blocks || k.Gaps != 0 {
			return fmt.Errorf("%+v, want %d blocks", k, blocks)
		}
		return nil
	})
}

// pdctl runs pdctl and returns its output.
func (r *rig) pdctl(args ...string) string {
	r.t.Helper()
	args = append(args, "--etcd-endpoints", strings.Join(r.proxy.Etcd, ","))
	cmd := exec.CommandContext(r.t.Context(), filepath.Join(binDir, "pdctl"), args...)
	var errs strings.Builder
	cmd.Stderr = &errs
	out, err := cmd.Output()
	if err != nil {
		r.t.Fatalf("pdctl %v: %v\n%s%s", args, err, out, errs.String())
	}
	return string(out)
}

// runExample sends the two requests of vLLM's example to an engine and returns the number of blocks that
// they fill.
func (r *rig) runExample(e *engine) (blocks int) {
	r.t.Helper()
	for _, age := range []string{"5", "50"} {
		status, body, err := r.callAt(e.url(), http.MethodPost, "/v1/completions", `{"model":"`+model+`","max_tokens":40,"ignore_eos":true,"temperature":0,`+
			`"prompt":"Explain quantum computing in simple terms a `+age+`-year-old could understand."}`)
		if err != nil || status != http.StatusOK {
			r.t.Fatalf("%d, %v: %s", status, err, body)
		}
		var a struct {
			Usage struct {
				Total int `json:"total_tokens"`
			}
		}
		require.NoError(r.t, json.Unmarshal(body, &a))
		blocks += (a.Usage.Total - 1) / blockSize // the last token is not cached
	}
	return blocks
}

// unsent matches members of vLLM's types that an engine does not send.
var unsent = regexp.MustCompile(`, (extra_keys|group_idx|kv_cache_spec_kind|kv_cache_spec_sliding_window|locality|ownership|session_id)=None`)

// TestEventsThroughAgents starts the engine of vLLM's example of KV events twice on one machine with the
// same command line. The agents assign ports and register them, the proxy follows both engines, and pdctl
// prints the same events as vLLM's types. The state of a killed engine is discarded, and the engine is
// followed again after its restart.
func TestEventsThroughAgents(t *testing.T) {
	if short() {
		t.Skip("not part of the short form")
	}
	r := newRig(t)
	var err error
	r.proxy, err = r.fleet.StartProxy(t.Context(), fleet.ProxySpec{Name: "proxy", Args: []string{"--kv-events", "on"}})
	require.NoError(t, err)
	var engines []*engine
	for i := range 2 {
		ports, err := fleet.FreePorts(1)
		require.NoError(t, err)
		e := &engine{name: "prefill-" + strconv.Itoa(i), role: instance.Prefill, address: "127.0.0.1:" + strconv.Itoa(ports[0])}
		args := []string{"--etcd-endpoints", strings.Join(r.proxy.Etcd, ","), "--role", "prefill", "--connector", "plain", "--restart", "on-failure", "--restart-delay", "100ms", "--", absolute("lab/bin/vllm")}
		args = slices.Concat(args, command(ports[0]), []string{"--max-model-len", "100", "--trust-remote-code", "--kv-events-config", `{"enable_kv_cache_events": true, "publisher": "zmq", "topic": "kv-events"}`})
		e.Process, err = r.fleet.Start(t.Context(), fleet.Spec{Name: e.name, Program: "agent", Args: args, Env: environment()})
		require.NoError(t, err)
		engines = append(engines, e)
	}
	r.awaitFollowed(engines)

	replays := make([]string, len(engines))
	for i, e := range engines {
		var record instance.Record
		var got struct {
			Keys []struct{ Value string }
		}
		raw := r.pdctl("get", "prefill/"+e.address, "-o", "json")
		if err := json.Unmarshal([]byte(raw), &got); err != nil || len(got.Keys) != 1 {
			t.Fatalf("%v: %s", err, raw)
		}
		if err := json.Unmarshal([]byte(got.Keys[0].Value), &record); err != nil {
			t.Fatalf("%v: %s", err, raw)
		}
		var published map[string]instance.KVEvents
		require.NoError(t, r.get(t.Context(), e.url()+"/kv_event_sources", &published))
		is, source := record.KVEvents["0"], published["0"]
		want := instance.KVEvents{Endpoint: strings.Replace(source.Endpoint, "*", "127.0.0.1", 1), ReplayEndpoint: strings.Replace(source.ReplayEndpoint, "*", "127.0.0.1", 1), Topic: "kv-events"}
		if len(record.KVEvents) != 1 || is != want || is.ReplayEndpoint == "" || is.ReplayEndpoint == is.Endpoint {
			t.Errorf("%s: the record has %+v, the engine reports %+v", e.name, record.KVEvents, published)
		}
		replays[i] = is.ReplayEndpoint
		logf("%s: %+v", e.name, is)
		r.awaitBlocks(e, r.runExample(e))
	}

	cmd := exec.CommandContext(t.Context(), filepath.Join(lab.dir, "venv", "bin", "python"), append([]string{absolute("lab/subscriber.py")}, replays...)...)
	cmd.Env = append(cmd.Environ(), lab.env...)
	printed, err := cmd.Output()
	require.NoError(t, err)
	for i, e := range engines {
		_, part, _ := strings.Cut(string(printed), "--- "+replays[i]+"\n")
		part, _, _ = strings.Cut(part, "--- ")
		batches := strings.Count(part, "Received event batch at ")
		got := r.pdctl("events", "prefill", e.address, "--past", "--count", strconv.Itoa(batches))
		want := "Listening for KV cache events on topic: kv-events\n" + unsent.ReplaceAllString(part, "")
		if got != want || batches < 4 {
			t.Errorf("%s: pdctl prints for %d batches\n%swant\n%s", e.name, batches, got, want)
		}
		logf("%s: pdctl prints %d batches as vLLM's own types do", e.name, batches)
	}

	// kill -9: the known blocks of the engine are discarded and learned again; those of the other remain.
	before, err := r.follows()
	require.NoError(t, err)
	r.killEngine(engines[0])
	testkit.Eventually(t, patience, func() error {
		all, err := r.follows()
		if k := all[engines[0].address]; err != nil || k.Blocks != 0 {
			return fmt.Errorf("%+v, %w", k, err)
		}
		return nil
	})
	logf("after kill -9 nothing of %s is known", engines[0].name)
	r.awaitFollowState(engines[0], 0, kvevents.Silent) // the restarted engine, which has published nothing yet
	r.awaitBlocks(engines[0], r.runExample(engines[0]))
	if all, err := r.follows(); err != nil || all[engines[1].address].Blocks != before[engines[1].address].Blocks || all[engines[1].address].State != "following" {
		t.Errorf("%v: the other engine is %+v, was %+v", err, all[engines[1].address], before[engines[1].address])
	}
	logf("%s is followed again", engines[0].name)
}
