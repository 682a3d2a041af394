package forward_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pdmesh/pdmesh/internal/forward"
	"github.com/pdmesh/pdmesh/internal/forward/relay"
	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/sim/fakevllm"
)

func TestOneRequest(t *testing.T) {
	t.Parallel()
	for _, mode := range sequentialModes() {
		for _, chat := range []bool{true, false} {
			for _, stream := range []bool{true, false} {
				name := fmt.Sprintf("%s/chat=%v/stream=%v", mode, chat, stream)
				t.Run(name, func(t *testing.T) {
					t.Parallel()
					r := start(t, mode, 2, 2, nil)
					path, body := "/v1/chat/completions", chatBody(stream, "")
					if !chat {
						path = "/v1/completions"
						body = fmt.Sprintf(`{"model":"m","prompt":"once upon","max_tokens":9,"stream":%v}`, stream)
					}
					a := r.post(path, body, "X-Request-Id", "mine", "X-PD-Trace", "1", "Authorization", "Bearer client-key")
					r.checkComplete(a, chat, body)
					e := r.entry()
					require.True(t, e.Outcome == relay.OutcomeOK && e.Failed == 0 && e.TTFT != 0 && e.Bytes == int64(len(a.body)),
						"entry %+v", e)
					if a.header.Get("X-Request-Id") != "mine" || a.header.Get("X-Pd-Prefill") != e.Prefill || a.header.Get("X-Pd-Decode") != e.Decode {
						t.Fatalf("headers %v, entry %+v", a.header, e)
					}
					p, d := posted(r.P[0]), posted(r.D[0])
					require.True(t, len(p) == 1 && len(d) == 1, "%d prefills, %d decodes", len(p), len(d))
					id := p[0].Header.Get("X-Request-Id")
					require.True(t, id == d[0].Header.Get("X-Request-Id") && strings.HasPrefix(id, "mine-"),
						"ids of the legs: %q, %q", id, d[0].Header.Get("X-Request-Id"))
					require.True(t, d[0].Header.Get("Authorization") == "Bearer client-key" && d[0].Header.Get("X-Pd-Trace") == "",
						"headers of the decode leg: %v", d[0].Header)
					require.EqualValues(t, 0, total(r.D, func(c fakevllm.Counters) int64 { return c.LocalPrefills }),
						"prompts computed twice")
					r.checkEngines()
				})
			}
		}
	}
}

// Bytes that the proxy does not edit reach the engines unchanged.
func TestEdit_KeepsOtherBytes(t *testing.T) {
	t.Parallel()
	r := start(t, fakevllm.NIXL, 1, 1, nil)
	big := strings.Repeat("lorem ipsum ", 1<<20/12)
	tail := `"messages" : [ {"role":"user","content":"` + big + `"} ],` +
		`"tools":[{"type":"function","function":{"name":"f","parameters":{"type":"object","properties":{}}}}],"tool_choice":"none",` +
		`"response_format":{"type":"text"},"seed":9007199254740993,"my_\u0066ield":1.50e+3,"metadata":{"kv_transfer_params":"kept"}}`
	body := `{"model":"m",` + tail[:len(tail)-1] + `,"max_\u0074okens":5}`
	a := r.post("/v1/chat/completions", body)
	r.checkComplete(a, true, body)
	d := legBody(t, r.D[0])
	raw, err := kvOf(d)
	require.NoError(t, err)
	if got, want := string(d), `{"kv_transfer_params":`+raw+`,`+body[1:]; got != want {
		t.Errorf("decode leg differs (%d and %d bytes)", len(got), len(want))
	}
	want := `{"min_tokens":1,"ignore_eos":true,"stream":false,` +
		`"kv_transfer_params":{"do_remote_decode":true,"do_remote_prefill":false,"remote_engine_id":null,"remote_block_ids":null,"remote_host":null,"remote_port":null},` +
		strings.Replace(body[1:], `"max_\u0074okens":5`, `"max_\u0074okens":1`, 1)
	assert.Equal(t, string(sorted([]byte(want))), string(sorted(legBody(t, r.P[0]))),
		"prefill leg differs: want %.400s", want)
	r.checkEngines()
}

// legBody returns the body of the first leg that an engine received.
func legBody(t *testing.T, s *fakevllm.Server) []byte {
	t.Helper()
	for _, q := range posted(s) {
		return q.Body
	}
	t.Fatal("no leg came")
	return nil
}

// sorted cuts off the fields that the proxy has inserted: the rest, from "model" on, is
// compared byte for byte.
func sorted(b []byte) []byte {
	i := bytes.Index(b, []byte(`"model":`))
	return b[i:]
}

func kvOf(body []byte) (string, error) {
	var v struct {
		KV json.RawMessage `json:"kv_transfer_params"`
	}
	err := json.Unmarshal(body, &v)
	return string(v.KV), err
}

func TestControlFields_Stripped(t *testing.T) {
	t.Parallel()
	evil := `,"kv_transfer_params":{"do_remote_prefill":true,"remote_host":"192.0.2.1","remote_port":1},"bootstrap_host":"x","disagg_spec":{},` +
		`"bootstrap_pair_key":"x","bootstrap_room":1,"ec_transfer_params":{"consumer_zmq":"tcp://192.0.2.1:1"},"priority":-9,` +
		`"vllm_xargs":{"kv_transfer_params":"x","ec_transfer_params":"x","a":1},` +
		`"sampling_params":{"extra_args":{"kv_transfer_params":{},"ec_transfer_params":{"peer_host":"192.0.2.1"},"b":2}}`
	headers := []string{"X-Data-Parallel-Rank", "7", "X-Prefiller-Host-Port", "evil:1", "X-Vllm-Priority", "-9", "X-PD-Trace", "1", "X-Api-Key", "k"}
	for _, tc := range []struct{ name, path, body string }{
		{"chat", "/v1/chat/completions", chatBody(true, evil)},
		{"decode-only", "/v1/completions", `{"model":"m","prompt":"x","max_tokens":2,"n":2` + evil + `}`},
		{"a response", responsesPath, agentBody(responsesPath, true, evil)},
		{"a message", messagesPath, agentBody(messagesPath, false, evil)},
		{"another endpoint", "/tokenize", `{"model":"m","prompt":"x"` + evil + `}`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			r := start(t, fakevllm.NIXL, 1, 1, nil)
			for range 3 { // the connection remembers headers
				r.post(tc.path, tc.body, headers...).require(t, http.StatusOK)
			}
			seen := append(posted(r.P[0]), posted(r.D[0])...)
			for _, q := range seen {
				for _, bad := range []string{"192.0.2.1", "bootstrap_", "disagg_spec", "ec_transfer_params", `"kv_transfer_params":"x"`, `"extra_args":{"kv`, "priority"} {
					assert.False(t, bytes.Contains(q.Body, []byte(bad)), "%s reached an engine: %s", bad, q.Body)
				}
				for _, h := range []string{"X-Data-Parallel-Rank", "X-Prefiller-Host-Port", "X-Vllm-Priority", "X-Pd-Trace", "X-Api-Key"} {
					assert.Equal(t, "", q.Header.Get(h), "%s reached an engine", h)
				}
			}
			assert.GreaterOrEqual(t, len(seen), 3, "%d requests reached engines", len(seen))
			r.checkEngines()
		})
	}
}

// Only a privileged client may set the priority of a request.
func TestPriority_PrivilegedClients(t *testing.T) {
	t.Parallel()
	r := start(t, fakevllm.NIXL, 1, 1, func(o *forward.Options) {
		o.Privileged = func(q *http.Request) bool { return q.Header.Get("X-Api-Key") == "admin" }
	})
	for range 3 {
		for key, want := range map[string]bool{"admin": true, "other": false} {
			for _, s := range append(r.P, r.D...) {
				s.ForgetRequests()
			}
			body := chatBody(true, `,"priority":-9`)
			r.checkComplete(r.post("/v1/chat/completions", body, "X-Api-Key", key, "X-Vllm-Priority", "-9"), true, body)
			for _, q := range append(posted(r.P[0]), posted(r.D[0])...) {
				if bytes.Contains(q.Body, []byte(`"priority":-9`)) != want || (q.Header.Get("X-Vllm-Priority") != "") != want {
					t.Errorf("with the key %q an engine got %s, %v", key, q.Body, q.Header)
				}
			}
		}
	}
	r.checkEngines()
}

// With TraceAll, every client gets the route of its request without asking for it.
func TestTraceAll(t *testing.T) {
	t.Parallel()
	for _, all := range []bool{true, false} {
		r := start(t, fakevllm.NIXL, 1, 1, func(o *forward.Options) {
			o.TraceAll, o.Trace = all, func(q *http.Request) bool { return q.Header.Get("X-Api-Key") == "admin" }
		})
		for _, tc := range []struct {
			headers []string
			want    bool
		}{
			{nil, all}, {nil, all}, {nil, all}, // the connection remembers headers
			{[]string{"X-PD-Trace", "1"}, all}, {[]string{"X-PD-Trace", "1", "X-Api-Key", "admin"}, true}, {[]string{"X-Api-Key", "admin"}, all},
		} {
			for _, stream := range []bool{false, true} {
				a := r.post("/v1/chat/completions", chatBody(stream, ""), tc.headers...)
				got := a.header.Get("X-PD-Prefill") == r.P[0].Address() && a.header.Get("X-PD-Decode") == r.D[0].Address()
				assert.Equal(t, tc.want, got, "all %v, %v: %v", all, tc.headers, a.header)
			}
		}
	}
}

func TestPassthroughAndModels(t *testing.T) {
	t.Parallel()
	r := start(t, fakevllm.Plain, 1, 1, nil)
	a := r.post("/tokenize", `{"model":"m","prompt":"a b c"}`)
	a.require(t, http.StatusOK, `"count"`)
	n := len(posted(r.D[0]))
	require.Equal(t, 1, n, "decode saw %d requests", n)
	get := func(path string) (int, string) {
		a := r.get(path)
		return a.status, string(a.body)
	}
	if code, body := get("/v1/models"); code != 200 || strings.Count(body, `"id":"m"`) != 1 || !strings.Contains(body, `"root"`) || !strings.Contains(body, `"permission"`) {
		t.Fatalf("/v1/models: %d %s", code, body)
	}
	if code, body := get("/v1/models/m"); code != 200 || !strings.Contains(body, `"id":"m"`) || strings.Contains(body, `"data"`) {
		t.Fatalf("/v1/models/m: %d %s", code, body)
	}
	code, body := get("/v1/models/org/none")
	require.True(t, code == 404 && strings.Contains(body, "does not exist"), "/v1/models/org/none: %d %s", code, body)
}

// A request for a single instance is retried on a prefill instance before the same decode instance gets it
// again. If only one instance serves the model, that one gets it again.
func TestPassthroughOfFailingDecode(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		model string
		fails map[string]int // number of answers of an instance of the role that are errors
		legs  string
	}{
		"all of decode":    {"m", map[string]int{"d": 9}, "d d p"},
		"all once":         {"m", map[string]int{"d": 1, "p": 1}, "d d p d"},
		"the only prefill": {"only", map[string]int{"p": 1}, "p p"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := start(t, fakevllm.Plain, 0, 0, nil)
			var mu sync.Mutex // guards legs
			var legs []string
			at := func(role instance.Role, name string, models ...string) *instance.Instance {
				left := tc.fails[name]
				in := handlerEngine(t, role, func(w http.ResponseWriter, _ *http.Request) {
					mu.Lock()
					defer mu.Unlock()
					legs = append(legs, name)
					w.Header().Set("Content-Type", "application/json")
					if left--; left >= 0 {
						w.WriteHeader(http.StatusInternalServerError)
					}
					_, _ = io.WriteString(w, `{}`)
				})
				in.Record.Models = models
				return in
			}
			r.members.set(at(instance.Decode, "d", "m"), at(instance.Decode, "d", "m"), at(instance.Prefill, "p", "m", "only"))
			a := r.post("/tokenize", `{"model":"`+tc.model+`","prompt":"a b c"}`)
			mu.Lock()
			defer mu.Unlock()
			if got := strings.Join(legs, " "); a.status != http.StatusOK || got != tc.legs {
				t.Errorf("%d %s after %q, want 200 after %q", a.status, a.body, got, tc.legs)
			}
			if e := r.entry(); (e.Prefill == "") == (e.Decode == "") {
				t.Errorf("one instance has served, but the entry names prefill %q and decode %q", e.Prefill, e.Decode)
			}
		})
	}
}

// A route that the engines do not have costs one leg, no instance is blamed, and the client gets the engine's
// answer. On a route that generates, the header reports that there was no prefill.
func TestRoute_UnsupportedByEngines(t *testing.T) {
	t.Parallel()
	r := start(t, fakevllm.Plain, 0, 0, nil)
	var asked atomic.Int64
	var list []*instance.Instance
	for range 3 {
		list = append(list, handlerEngine(t, instance.Decode, func(w http.ResponseWriter, q *http.Request) {
			asked.Add(1)
			w.Header().Set("Content-Type", "application/json")
			if strings.HasSuffix(q.URL.Path, "/render") {
				w.WriteHeader(http.StatusForbidden)
				_, _ = io.WriteString(w, `{"error":{"message":"switched off"}}`)
				return
			}
			w.WriteHeader(http.StatusNotFound)
			_, _ = io.WriteString(w, `{"detail":"Not Found"}`)
		}))
	}
	r.members.set(list...)
	for path, reason := range map[string]string{"/pooling": "", "/v1/chat/completions/batch": "route"} {
		before := asked.Load()
		a := r.post(path, `{"model":"m","input":"a b c"}`, "X-PD-Trace", "1")
		if a.status != http.StatusNotFound || a.header.Get("X-PD-Attempts") != "1" || string(a.body) != `{"detail":"Not Found"}` || a.header.Get("X-PD-Decode-Only") != reason {
			t.Errorf("%s: %d %v %s", path, a.status, a.header, a.body)
		}
		assert.EqualValues(t, 1, asked.Load()-before, "%s: legs", path)
		e := r.entry()
		assert.True(t, e.Outcome == relay.OutcomeClientError && e.DecodeOnly == reason, "%s: %+v", path, e)
	}
	if a := r.post("/v1/completions/render", `{"model":"m","prompt":"a"}`); a.status != http.StatusForbidden || string(a.body) != `{"error":{"message":"switched off"}}` {
		t.Errorf("a route that is switched off: %d %s", a.status, a.body)
	}
}
