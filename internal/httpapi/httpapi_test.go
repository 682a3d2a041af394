package httpapi_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/sirupsen/logrus"

	"github.com/pdmesh/pdmesh/internal/forward"
	"github.com/pdmesh/pdmesh/internal/httpapi"
	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/internal/testkit/leak"
)

func TestMain(m *testing.M) { leak.Main(m) }

type fixed struct{ s *instance.Snapshot }

func (f fixed) Snapshot() *instance.Snapshot { return f.s }

type load struct{}

func (load) InFlight(instance.Key) int64 { return 3 }

type opinion map[string]string

func (o opinion) Available(k instance.Key) bool { return o[k.Address] == "" }
func (o opinion) Why(k instance.Key) string     { return o[k.Address] }

// admin answers by address: the word in front of the colon says how.
type admin struct{}

func (admin) Add(_ context.Context, k instance.Key) (httpapi.Outcome, error) {
	switch host, _, _ := strings.Cut(k.Address, ":"); host {
	case "waits":
		return httpapi.Waiting, nil
	case "known":
		return httpapi.Already, nil
	case "wrong":
		return 0, fmt.Errorf("%w: Instance %s serves x", httpapi.ErrRefused, k.Address)
	case "noetcd":
		return 0, fmt.Errorf("%w: no answer from 127.0.0.1:2379", httpapi.ErrUnavailable)
	case "bug":
		return 0, errors.New("surprise")
	}
	return httpapi.Added, nil
}

func (admin) Remove(_ context.Context, k instance.Key) (bool, error) {
	return !strings.HasPrefix(k.Address, "unknown"), nil
}

func members() *instance.Snapshot {
	ready := func(role instance.Role, address string) *instance.Instance {
		return &instance.Instance{
			Key: instance.Key{Role: role, Address: address}, Verified: true, Lease: 7, ModRevision: 5,
			Record: instance.Record{State: instance.Ready, Models: []string{"m"}, ID: "x\x1b[2J"},
		}
	}
	rejected := ready(instance.Decode, "10.0.0.9:1")
	rejected.View, rejected.Verified, rejected.Reason = instance.Rejected, false, "broken JSON"
	return instance.NewSnapshot(42, []*instance.Instance{
		ready(instance.Prefill, "10.0.0.1:1"), ready(instance.Decode, "10.0.0.2:1"), ready(instance.Decode, "10.0.0.3:1"), rejected,
	})
}

func deps() httpapi.Deps {
	log := logrus.New()
	log.SetOutput(io.Discard)
	say := func(text string) forward.HandlerFunc {
		return func(c forward.Client, _ *http.Request) { _, _ = io.WriteString(c, text) }
	}
	return httpapi.Deps{
		Data: httpapi.Completions{
			Completion:  say("completion"),
			Chat:        func(forward.Client, *http.Request) { panic(http.ErrAbortHandler) },
			Passthrough: say,
			Models: func(id func(*http.Request) string) forward.HandlerFunc {
				return func(w forward.Client, r *http.Request) { _, _ = io.WriteString(w, "models:"+id(r)) }
			},
		},
		Admin: admin{}, Members: fixed{members()}, Load: load{}, Opinion: opinion{"10.0.0.3:1": "cannot connect"},
		Etcd:  func() httpapi.EtcdStatus { return httpapi.EtcdStatus{State: "live"} },
		Ready: func() error { return nil }, Metrics: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "metrics") }), Log: log, AdminKey: "secret", Version: "v", ID: "me",
		Fallback: true,
	}
}

func serve(t *testing.T, d httpapi.Deps, split bool) *httptest.Server {
	t.Helper()
	s := httptest.NewServer(httpapi.NewRouter(d, split))
	t.Cleanup(s.Close)
	return s
}

// client has connections of its own: the end of any httptest.Server closes the
// idle ones of the default client, under the hands of tests beside it.
func client() *http.Client {
	return &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
}

func call(t *testing.T, method, url, body string, header ...string) (int, http.Header, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i+1 < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	resp, err := client().Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, resp.Header, string(b)
}

// A broken stream must reach the client as broken: gin's own recovery would
// end it cleanly.
func TestAbortReachesTheClient(t *testing.T) {
	t.Parallel()
	s := serve(t, deps(), false)
	req, _ := http.NewRequestWithContext(t.Context(), http.MethodPost, s.URL+"/v1/chat/completions", strings.NewReader("{}"))
	resp, err := client().Do(req)
	if err == nil {
		_ = resp.Body.Close()
		t.Fatalf("the client got %s", resp.Status)
	}
}

func TestPanicIsA500(t *testing.T) {
	t.Parallel()
	d := deps()
	d.Data.Completion = func(forward.Client, *http.Request) { panic("bug") }
	s := serve(t, d, false)
	code, _, body := call(t, http.MethodPost, s.URL+"/v1/completions", "{}")
	if code != 500 || !strings.Contains(body, `"error"`) || strings.Contains(body, "bug") {
		t.Fatalf("%d %s", code, body)
	}
}

func TestRoutes(t *testing.T) {
	t.Parallel()
	s := serve(t, deps(), false)
	for _, tc := range []struct {
		method, path string
		code         int
		says         string
	}{
		{"POST", "/v1/completions", 200, "completion"},
		{"POST", "/v1/embeddings", 200, "/v1/embeddings"},
		{"POST", "/tokenize", 200, "/tokenize"},
		{"POST", "/v1/messages/count_tokens", 200, "/v1/messages/count_tokens"},
		{"GET", "/v1/models", 200, "models:"},
		{"GET", "/v1/models/org/name", 200, "models:org/name"},
		{"GET", "/health", 200, ""},
		{"GET", "/livez", 200, "ok"},
		{"GET", "/readyz", 200, `"ready":true`},
		{"GET", "/version", 200, `{"version":"v"}`},
		{"GET", "/metrics", 200, "metrics"},
		{"GET", "/healthcheck", 200, `"request_num":9`},
		{"GET", "/", 200, "pdmesh"},
		{"GET", "/ping", 200, ""},
		{"POST", "/ping", 200, ""},
		{"GET", "/v1/completions", 405, `{"detail":"Method Not Allowed"}`},
		{"DELETE", "/v1/models", 405, `{"detail":"Method Not Allowed"}`},
		{"POST", "/health", 405, `{"detail":"Method Not Allowed"}`},
		{"DELETE", "/status", 405, `{"error":{"message":"/status does not take DELETE","type":"MethodNotAllowedError","param":null,"code":405}}`},
		{"GET", "/instances/add", 405, `"type":"MethodNotAllowedError"`},
		{"POST", "/v1/load_lora_adapter", 404, `{"detail":"Not Found"}`},
		{"GET", "/invocations", 404, `{"detail":"Not Found"}`},
		{"GET", "/instances", 404, `{"detail":"Not Found"}`},
		{"GET", "/%1b[2J", 404, `{"detail":"Not Found"}`},
	} {
		code, _, body := call(t, tc.method, s.URL+tc.path, "{}")
		if code != tc.code || !strings.Contains(body, tc.says) {
			t.Errorf("%s %s: %d %s", tc.method, tc.path, code, body)
		}
	}
}

func TestStatus(t *testing.T) {
	t.Parallel()
	s := serve(t, deps(), false)
	for _, method := range []string{http.MethodGet, http.MethodPost} {
		code, _, body := call(t, method, s.URL+"/status", "")
		var st httpapi.Status
		if err := json.Unmarshal([]byte(body), &st); err != nil || code != 200 {
			t.Fatalf("%d %v: %s", code, err, body)
		}
		// The ejected one is still a member, as the reference proxies count.
		if !strings.HasPrefix(body, `{"prefill_node_count":1,"decode_node_count":2,"prefill_nodes":["10.0.0.1:1"],"decode_nodes":["10.0.0.2:1","10.0.0.3:1"],`) {
			t.Errorf("body %s", body)
		}
		if len(st.Instances) != 4 || st.Revision != 42 || st.Etcd.State != "live" || *st.Instances[0].InFlight != 3 {
			t.Errorf("status %+v", st)
		}
		views := map[string]string{}
		for _, l := range st.Instances {
			views[l.Address] = string(l.View) + l.Reason
		}
		if views["10.0.0.3:1"] != "ejectedcannot connect" || views["10.0.0.9:1"] != "rejectedbroken JSON" || views["10.0.0.2:1"] != "" {
			t.Errorf("views %v", views)
		}
		if strings.ContainsRune(body, 0x1b) {
			t.Error("an escape character came through")
		}
	}
}

// A proxy is no engine, whatever is asked to find that out: as an instance of its own
// it would send requests to itself.
func TestProbesAreRefused(t *testing.T) {
	t.Parallel()
	s := serve(t, deps(), false)
	for _, path := range []string{"/v1/models", "/health", "/version", "/metrics"} {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, s.URL+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set(instance.ProbeHeader, "1")
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		if err != nil || resp.StatusCode != http.StatusLoopDetected || !strings.Contains(string(body), "not an engine") {
			t.Errorf("%s: %d %s %v", path, resp.StatusCode, body, err)
		}
	}
}

func TestHealthFollowsTheRoles(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name     string
		sick     opinion
		fallback bool
		code     int
	}{
		{"all well", opinion{}, false, 200},
		{"no decode", opinion{"10.0.0.2:1": "x", "10.0.0.3:1": "x"}, true, 503},
		{"no prefill, fallback", opinion{"10.0.0.1:1": "x"}, true, 200},
		{"no prefill, none", opinion{"10.0.0.1:1": "x"}, false, 503},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			d := deps()
			d.Opinion, d.Fallback = tc.sick, tc.fallback
			code, h, body := call(t, http.MethodGet, serve(t, d, false).URL+"/health", "")
			if code != tc.code || (code == 200) != (body == "") || (code == 503) != (h.Get("Retry-After") != "") {
				t.Fatalf("%d %v %q", code, h, body)
			}
		})
	}
}

func TestReadyz(t *testing.T) {
	t.Parallel()
	d := deps()
	d.Ready = func() error { return errors.New("no list yet") }
	code, _, body := call(t, http.MethodGet, serve(t, d, false).URL+"/readyz", "")
	if code != 503 || !strings.Contains(body, "no list yet") {
		t.Fatalf("%d %s", code, body)
	}
}

func TestClientKeys(t *testing.T) {
	t.Parallel()
	d := deps()
	d.ClientKeys = []string{"k1", "k2"}
	s := serve(t, d, false)
	for _, tc := range []struct {
		auth string
		code int
	}{{"", 401}, {"Bearer no", 401}, {"Bearer ", 401}, {"Basic k1", 401}, {"Bearer k1", 200}, {"bearer k2", 200}, {"Bearer secret", 401}} {
		code, h, body := call(t, http.MethodPost, s.URL+"/v1/completions", "{}", "Authorization", tc.auth)
		if code != tc.code || (code == 401 && (h.Get("WWW-Authenticate") == "" || !strings.Contains(body, "AuthenticationError"))) {
			t.Errorf("%q: %d %s", tc.auth, code, body)
		}
	}
	if code, _, _ := call(t, http.MethodGet, s.URL+"/health", ""); code != 200 {
		t.Errorf("/health wants a key: %d", code)
	}
}

func TestAdminKey(t *testing.T) {
	t.Parallel()
	s := serve(t, deps(), false)
	off := deps()
	off.AdminKey = ""
	s2 := serve(t, off, false)
	const body = `{"type":"prefill","instance":"new:1"}`
	for _, tc := range []struct {
		url, name, value string
		code             int
		says             string
	}{
		{s.URL, "X-Other", "x", 401, "X-Api-Key"},
		{s.URL, "X-Api-Key", "wrong", 403, "Invalid API Key"},
		{s.URL, "X-Api-Key", "secret", 200, "Added new:1 to prefill_instances."},
		{s.URL, "Authorization", "Bearer secret", 200, "Added"},
		{s2.URL, "X-Api-Key", "", 403, "ADMIN_API_KEY"},
		{s2.URL, "X-Api-Key", "secret", 403, "ADMIN_API_KEY"},
	} {
		code, _, got := call(t, http.MethodPost, tc.url+"/instances/add", body, "Content-Type", "application/json", tc.name, tc.value)
		if code != tc.code || !strings.Contains(got, tc.says) {
			t.Errorf("%s %q: %d %s", tc.name, tc.value, code, got)
		}
	}
}

func TestAdminWordsAndErrors(t *testing.T) {
	t.Parallel()
	s := serve(t, deps(), false)
	const lists = `"current_prefill_instances":["10.0.0.1:1"],"current_decode_instances":["10.0.0.2:1","10.0.0.3:1"]`
	for _, tc := range []struct {
		name, path, body string
		code             int
		says             string
	}{
		{"added", "add", `{"type":"decode","instance":"new:1"}`, 200, `{"message":"Added new:1 to decode_instances.",` + lists},
		{"already there", "add", `{"type":"decode","instance":"known:1"}`, 200, "Added known:1 to decode_instances."},
		{"waiting", "add", `{"type":"prefill","instance":"waits:1"}`, 200, "Waiting for prefill_instance waits:1 to start."},
		{"localhost", "add", `{"type":"prefill","instance":"localhost:81"}`, 200, "Added 127.0.0.1:81 to"},
		{"IPv6", "add", `{"type":"prefill","instance":"[2001:DB8::1]:81"}`, 200, "Added [2001:db8::1]:81 to"},
		{"several", "add", `{"type":"prefill","instances":["a:1","b:2"]}`, 200, `"message":"add prefill instances: ['a:1', 'b:2'].",` + lists},
		{"several as text", "add", `{"type":"prefill","instances":"a:1"}`, 200, "add prefill instances: ['a:1']."},
		{"some wait", "add", `{"type":"prefill","instances":["a:1","waits:2"]}`, 200, "add prefill instances: ['a:1']. Instances ['waits:2'] are waiting to be added."},
		{"all wait", "add", `{"type":"prefill","instances":["waits:2"]}`, 200, `"message":"Instances ['waits:2'] are waiting to be added."`},
		{"wrong model", "add", `{"type":"prefill","instance":"wrong:1"}`, 400, `"message":"Instance wrong:1 serves x"`},
		{"half done", "add", `{"type":"prefill","instances":["a:1","wrong:1"]}`, 400, "already done: a:1"},
		{"etcd away", "add", `{"type":"prefill","instance":"noetcd:1"}`, 503, "etcd is not available"},
		{"our bug", "add", `{"type":"prefill","instance":"bug:1"}`, 500, "surprise"},
		{"no type", "add", `{"instance":"a:1"}`, 400, `{"detail":"Invalid instance type. \"type\" is missing`},
		{"bad type", "add", `{"type":"both","instance":"a:1"}`, 400, "Invalid instance type"},
		{"type is a number", "add", `{"type":1,"instance":"a:1"}`, 400, "BadRequestError"},
		{"no instance", "add", `{"type":"decode"}`, 400, `{"detail":"Invalid instance format. Give`},
		{"both fields", "add", `{"type":"decode","instance":"a:1","instances":["b:1"]}`, 400, "either"},
		{"no port", "add", `{"type":"decode","instance":"a"}`, 400, `{"detail":"Invalid instance format. \"a\": give host:port","error":{"message":"Invalid instance format. \"a\"`},
		{"empty address", "add", `{"type":"decode","instance":""}`, 400, `{"detail":"Invalid instance format. it is empty; give host:port"`},
		{"port 0", "add", `{"type":"decode","instance":"a:0"}`, 400, `{"detail":"Invalid instance address. `},
		{"port too large", "add", `{"type":"decode","instance":"a:65536"}`, 400, "1 to 65535"},
		{"bare IPv6", "add", `{"type":"decode","instance":"::1:80"}`, 400, "[address]:port"},
		{"wildcard", "add", `{"type":"decode","instance":"0.0.0.0:80"}`, 400, "wildcard"},
		{"URL", "add", `{"type":"decode","instance":"http://a:80"}`, 400, "without a scheme"},
		{"list of numbers", "add", `{"type":"decode","instances":[1]}`, 400, "Give"},
		{"empty list", "add", `{"type":"decode","instances":[]}`, 400, "Give"},
		{"no JSON", "add", `nonsense`, 400, "send"},
		{"huge", "add", `{"type":"` + strings.Repeat("x", 1<<20) + `"}`, 400, "larger than"},
		{"removed", "remove", `{"type":"decode","instance":"a:1"}`, 200, `{"message":"Removed a:1 from decode_instances.",` + lists},
		{"removed several", "remove", `{"type":"decode","instances":["a:1","b:1"]}`, 200, "remove decode instances: ['a:1', 'b:1']."},
		{"removed some", "remove", `{"type":"decode","instances":["a:1","unknown:1"]}`, 200, "remove decode instances: ['a:1']. Instances ['unknown:1'] are not"},
		{"remove unknown", "remove", `{"type":"decode","instance":"unknown:1"}`, 404, `{"message":"Instance unknown:1 is not in the decode_instances.","error":{"message":"Instance unknown:1 is not`},
		{"remove none known", "remove", `{"type":"decode","instances":["unknown:1"]}`, 404, "are not in"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			code, _, got := call(t, http.MethodPost, s.URL+"/instances/"+tc.path, tc.body, "Content-Type", "application/json", "X-Api-Key", "secret")
			if code != tc.code || !strings.Contains(got, tc.says) {
				t.Errorf("%d %s", code, got)
			}
		})
	}
	code, _, got := call(t, http.MethodPost, s.URL+"/instances/add", `{"type":"decode","instance":"a:1"}`, "X-Api-Key", "secret", "Content-Type", "text/plain")
	if code != 400 || !strings.Contains(got, "application/json") {
		t.Errorf("content type: %d %s", code, got)
	}
}

func TestSplitListeners(t *testing.T) {
	t.Parallel()
	s := serve(t, deps(), true)
	for path, want := range map[string]int{"/status": 404, "/metrics": 404, "/health": 200, "/v1/models": 200} {
		if code, _, _ := call(t, http.MethodGet, s.URL+path, ""); code != want {
			t.Errorf("clients' address: GET %s %d, want %d", path, code, want)
		}
	}
	a := httptest.NewServer(httpapi.NewAdminRouter(deps()))
	t.Cleanup(a.Close)
	for path, want := range map[string]int{"/status": 200, "/metrics": 200, "/readyz": 200, "/v1/models": 404} {
		if code, _, _ := call(t, http.MethodGet, a.URL+path, ""); code != want {
			t.Errorf("operator's address: GET %s %d, want %d", path, code, want)
		}
	}
}
