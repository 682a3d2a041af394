package embedetcd_test

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"io"
	"net/http"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/pdmesh/pdmesh/internal/discovery/embedetcd"
	"github.com/pdmesh/pdmesh/sim/testkit/etcdtest"
	"github.com/pdmesh/pdmesh/sim/testkit/members"
)

// request sends one request to the gateway.
func request(t testing.TB, s *embedetcd.Server, method, path, body string, change func(*http.Request)) (status int, answer string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, "http://"+s.Endpoint()+path, strings.NewReader(body))
	require.NoError(t, err)
	req.Header.Set("Content-Type", "application/json")
	if change != nil {
		change(req)
	}
	tr := &http.Transport{DisableKeepAlives: true}
	defer tr.CloseIdleConnections()
	resp, err := (&http.Client{Transport: tr}).Do(req)
	require.NoError(t, err)
	defer resp.Body.Close()
	got, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	for _, h := range []string{"Access-Control-Allow-Origin", "Access-Control-Allow-Headers"} {
		v := resp.Header.Get(h)
		assert.False(t, v != "" && v != "https://nobody.invalid", "%s %s: %s is %q", method, path, h, v)
	}
	return resp.StatusCode, string(got)
}

func b64(s string) string { return base64.StdEncoding.EncodeToString([]byte(s)) }

// A node registers, renews its lease and deregisters with plain HTTP.
func TestGatewayRegistersANode(t *testing.T) {
	t.Parallel()
	s := start(t, config(t, "127.0.0.1:0"))
	cli := etcdtest.Client(t, s.Endpoint())
	status, body := request(t, s, "POST", "/v3/lease/grant", `{"TTL":60}`, nil)
	var grant struct{ ID, TTL string }
	err := json.Unmarshal([]byte(body), &grant)
	require.True(t, err == nil && status == 200 && grant.ID != "" && grant.TTL == "60", "grant: %d %s", status, body)
	key := "/pd/prefill/127.0.0.1:8100"
	// curl -d sends no charset, others do.
	for _, ct := range []string{"application/json", "application/json; charset=utf-8", "Application/JSON"} {
		status, body = request(t, s, "POST", "/v3/kv/put", `{"key":"`+b64(key)+`","value":"","lease":"`+grant.ID+`"}`, func(r *http.Request) { r.Header.Set("Content-Type", ct) })
		require.True(t, status == 200 && strings.Contains(body, "revision"), "put with %s: %d %s", ct, status, body)
	}
	resp, err := cli.Get(t.Context(), key)
	require.True(t, err == nil && len(resp.Kvs) == 1 && resp.Kvs[0].Lease != 0 && len(resp.Kvs[0].Value) == 0,
		"%+v, %v", resp, err)
	status, body = request(t, s, "POST", "/v3/lease/keepalive", `{"ID":"`+grant.ID+`"}`, nil)
	require.True(t, status == 200 && strings.Contains(body, `"TTL":"60"`), "keepalive: %d %s", status, body)
	status, body = request(t, s, "POST", "/v3/kv/range", `{"key":"`+b64(key)+`"}`, nil)
	require.True(t, status == 200 && strings.Contains(body, `"count":"1"`), "range: %d %s", status, body)
	status, body = request(t, s, "POST", "/v3/lease/revoke", `{"ID":"`+grant.ID+`"}`, nil)
	require.Equal(t, 200, status, "revoke: %s", body)
	resp, err = cli.Get(t.Context(), key)
	require.True(t, err == nil && len(resp.Kvs) == 0, "%+v, %v", resp, err)
	// The host names that curl is most often used with.
	for _, host := range []string{"localhost", "localhost:2379", "LOCALHOST.", "127.0.0.1", "127.1.2.3:1", "[::1]:2379", "[::1]"} {
		status, body = request(t, s, "POST", "/v3/kv/range", `{"key":"YQ=="}`, func(r *http.Request) { r.Host = host })
		assert.Equal(t, 200, status, "Host %s: %s", host, body)
	}
}

// If etcd has users, a node logs in first.
func TestGatewayWithUsers(t *testing.T) {
	t.Parallel()
	s := start(t, config(t, "127.0.0.1:0"))
	etcdtest.EnableAuth(t, etcdtest.Client(t, s.Endpoint()), "node", "secret", "/pd/")
	put := `{"key":"` + b64("/pd/prefill/127.0.0.1:8100") + `","value":""}`
	if status, body := request(t, s, "POST", "/v3/kv/put", put, nil); status == 200 || !strings.Contains(body, "user name is empty") {
		t.Fatalf("anonymous put: %d %s", status, body)
	}
	if status, body := request(t, s, "POST", "/v3/auth/authenticate", `{"name":"node","password":"guess"}`, nil); status == 200 {
		t.Fatalf("a wrong password: %d %s", status, body)
	}
	status, body := request(t, s, "POST", "/v3/auth/authenticate", `{"name":"node","password":"secret"}`, nil)
	var login struct{ Token string }
	err := json.Unmarshal([]byte(body), &login)
	require.True(t, err == nil && status == 200 && login.Token != "", "login: %d %s", status, body)
	status, body = request(t, s, "POST", "/v3/kv/put", put,
		func(r *http.Request) { r.Header.Set("Authorization", login.Token) })
	require.Equal(t, 200, status, "put: %s", body)
}

func TestGatewayWatches(t *testing.T) {
	t.Parallel()
	s := start(t, config(t, "127.0.0.1:0"))
	cli := etcdtest.Client(t, s.Endpoint())
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, "POST", "http://"+s.Endpoint()+"/v3/watch",
		strings.NewReader(`{"create_request":{"key":"`+b64("/k")+`"}}`))
	require.NoError(t, err)
	req.Header.Set("Content-Type", "application/json")
	tr := &http.Transport{DisableKeepAlives: true}
	defer tr.CloseIdleConnections()
	resp, err := (&http.Client{Transport: tr}).Do(req)
	require.NoError(t, err)
	defer resp.Body.Close()
	dec := json.NewDecoder(resp.Body)
	var msg struct {
		Result struct {
			Created bool
			Events  []struct{ Kv struct{ Value string } }
		}
	}
	err = dec.Decode(&msg)
	require.True(t, err == nil && msg.Result.Created, "%+v, %v", msg, err)
	members.Put(t, cli, "/k", "hello")
	if err := dec.Decode(&msg); err != nil || len(msg.Result.Events) != 1 || msg.Result.Events[0].Kv.Value != b64("hello") {
		t.Fatalf("%+v, %v", msg, err)
	}
}

func TestGatewayRefusesWebPages(t *testing.T) {
	t.Parallel()
	s := start(t, config(t, "127.0.0.1:0"))
	cli := etcdtest.Client(t, s.Endpoint())
	put := `{"key":"` + b64("/pd/prefill/10.6.6.6:1") + `","value":""}`
	for _, c := range []struct {
		name, method string
		change       func(*http.Request)
		status       int
		says         string
	}{
		{"origin", "POST", func(r *http.Request) { r.Header.Set("Origin", "https://evil.example") }, 403, "Origin"},
		{"null origin", "POST", func(r *http.Request) { r.Header.Set("Origin", "null") }, 403, "Origin"},
		{"empty origin", "POST", func(r *http.Request) { r.Header["Origin"] = []string{""} }, 403, "Origin"},
		{"local origin", "POST", func(r *http.Request) { r.Header.Set("Origin", "http://127.0.0.1:3000") }, 403, "Origin"},
		{"fetch metadata", "POST", func(r *http.Request) { r.Header.Set("Sec-Fetch-Site", "cross-site") }, 403, "Sec-Fetch-Site"},
		{"form", "POST", func(r *http.Request) { r.Header.Set("Content-Type", "application/x-www-form-urlencoded") }, 415, "application/json"},
		{"form of a browser that hides its origin", "POST", func(r *http.Request) {
			r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
			r.Header.Set("User-Agent", "Mozilla/5.0 (X11; Linux x86_64; rv:52.0) Gecko/20100101 Firefox/52.0 curl/8.0")
		}, 415, "application/json"},
		{"curl's form with an origin", "POST", func(r *http.Request) {
			r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
			r.Header.Set("User-Agent", "curl/8.5.0")
			r.Header.Set("Origin", "null")
		}, 403, "Origin"},
		{"curl's form with fetch metadata", "POST", func(r *http.Request) {
			r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
			r.Header.Set("User-Agent", "curl/8.5.0")
			r.Header.Set("Sec-Fetch-Site", "same-origin")
		}, 403, "Sec-Fetch-Site"},
		{"curl's form under a rebound name", "POST", func(r *http.Request) {
			r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
			r.Header.Set("User-Agent", "curl/8.5.0")
			r.Host = "evil.example:2379"
		}, 403, "Host"},
		{"curl's file upload", "POST", func(r *http.Request) {
			r.Header.Set("Content-Type", "multipart/form-data; boundary=x")
			r.Header.Set("User-Agent", "curl/8.5.0")
		}, 415, "application/json"},
		{"plain text", "POST", func(r *http.Request) { r.Header.Set("Content-Type", "text/plain") }, 415, "application/json"},
		{"no content type", "POST", func(r *http.Request) { r.Header.Del("Content-Type") }, 415, "application/json"},
		{"two content types", "POST", func(r *http.Request) { r.Header["Content-Type"] = []string{"application/json", "text/plain"} }, 415, "application/json"},
		{"JSON in disguise", "POST", func(r *http.Request) { r.Header.Set("Content-Type", "text/plain; application/json") }, 415, "application/json"},
		{"rebound name", "POST", func(r *http.Request) { r.Host = "evil.example:2379" }, 403, "Host"},
		{"name that begins well", "POST", func(r *http.Request) { r.Host = "127.0.0.1.evil.example" }, 403, "Host"},
		{"other address", "POST", func(r *http.Request) { r.Host = "192.0.2.1:2379" }, 403, "Host"},
		{"wildcard", "POST", func(r *http.Request) { r.Host = "0.0.0.0:2379" }, 403, "Host"},
		{"GET", "GET", nil, 405, "POST"},
		{"PUT", "PUT", nil, 405, "POST"},
	} {
		for _, path := range []string{"/v3/kv/put", "/v3beta/kv/put"} {
			status, body := request(t, s, c.method, path, put, c.change)
			var msg struct{ Message string }
			if err := json.Unmarshal([]byte(body), &msg); err != nil || status != c.status || !strings.Contains(msg.Message, c.says) {
				t.Errorf("%s %s: %d %s", c.name, path, status, body)
			}
		}
	}
	// A browser's preflight request gets no permission (checked by request).
	request(t, s, "OPTIONS", "/v3/kv/put", "", func(r *http.Request) { r.Header.Set("Origin", "https://evil.example") })
	// A websocket from a page.
	status, body := request(t, s, "GET", "/v3/watch", "", func(r *http.Request) {
		r.Header.Set("Origin", "https://evil.example")
		r.Header.Set("Connection", "Upgrade")
		r.Header.Set("Upgrade", "websocket")
		r.Header.Set("Sec-WebSocket-Version", "13")
		r.Header.Set("Sec-WebSocket-Key", "dGhlIHNhbXBsZSBub25jZQ==")
	})
	assert.Equal(t, 403, status, "websocket: %s", body)
	resp, err := cli.Get(t.Context(), "/", clientv3.WithPrefix())
	require.NoError(t, err, "something was written")
	require.Len(t, resp.Kvs, 0, "something was written")
	// Invalid JSON and an oversized body are refused without side effects.
	status, body = request(t, s, "POST", "/v3/kv/put", `{"key":`, nil)
	assert.Equal(t, 400, status, "bad JSON: %s", body)
	status, _ = request(t, s, "POST", "/v3/kv/put", `{"key":"YQ==","value":"`+strings.Repeat("A", 5<<20)+`"}`, nil)
	assert.GreaterOrEqual(t, status, 400, "a body of 5 MiB: %d", status)
	status, body = request(t, s, "POST", "/v3/kv/put", put, nil)
	assert.Equal(t, 200, status, "after all that: %s", body)
}

// By default, curl declares a body as a form.
func TestGateway_AcceptsCurlRequests(t *testing.T) {
	t.Parallel()
	s := start(t, config(t, "127.0.0.1:0"))
	cli := etcdtest.Client(t, s.Endpoint())
	curl, err := exec.LookPath("curl")
	if err != nil {
		t.Skip("no curl here")
	}
	out, err := exec.Command(curl, "--silent", "--show-error", "--noproxy", "*", "--fail-with-body",
		"http://"+s.Endpoint()+"/v3/kv/put", "-d", `{"key":"`+b64("/pd/prefill/127.0.0.1:8100")+`"}`).CombinedOutput()
	require.NoError(t, err)
	assert.Contains(t, string(out), "revision")
	for _, agent := range []string{"curl/7.29.0", "Wget/1.21.4"} {
		status, body := request(t, s, "POST", "/v3/kv/range", `{"key":"YQ=="}`, func(r *http.Request) {
			r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
			r.Header.Set("User-Agent", agent)
		})
		assert.Equal(t, 200, status, "%s: %s", agent, body)
	}
	if resp, err := cli.Get(t.Context(), "/pd/prefill/127.0.0.1:8100"); err != nil || len(resp.Kvs) != 1 {
		t.Errorf("%+v, %v", resp, err)
	}
}

// A node must not change the configuration of etcd.
func TestGateway_AllowedCalls(t *testing.T) {
	t.Parallel()
	s := start(t, config(t, "127.0.0.1:0"))
	for path, body := range map[string]string{
		"/v3/cluster/member/list":      `{}`,
		"/v3/cluster/member/add":       `{"peerURLs":["http://127.0.0.1:1"],"isLearner":true}`,
		"/v3/cluster/member/remove":    `{"ID":"1"}`,
		"/v3/auth/status":              `{}`,
		"/v3/auth/user/add":            `{"name":"root","password":"x"}`,
		"/v3/auth/enable":              `{}`,
		"/v3/kv/compaction":            `{"revision":"1"}`,
		"/v3/kv/compaction/":           `{"revision":"1"}`,
		"/v3/kv//compaction":           `{"revision":"1"}`,
		"/v3/kv/put/../compaction":     `{"revision":"1"}`,
		"/v3/maintenance/snapshot":     `{}`,
		"/v3/maintenance/defragment":   `{}`,
		"/v3/maintenance/alarm":        `{"action":"ACTIVATE","alarm":"NOSPACE"}`,
		"/v3/maintenance/status":       `{}`,
		"/v3/maintenance/hash":         `{}`,
		"/v3/election/campaign":        `{"name":"eA==","lease":"1"}`,
		"/v3/lock/lock":                `{"name":"eA=="}`,
		"/v3beta/kv/compaction":        `{"revision":"1"}`,
		"/v3alpha/cluster/member/list": `{}`,
	} {
		status, answer := request(t, s, "POST", path, body, nil)
		assert.False(t, status != 404 && status != 301 && status != 307 && status != 308,
			"%s: %d %s", path, status, answer)
	}
	for path, body := range map[string]string{
		"/v3/kv/range": `{"key":"YQ=="}`, "/v3/kv/put": `{"key":"YQ=="}`, "/v3/kv/deleterange": `{"key":"YQ=="}`,
		"/v3/kv/txn": `{"success":[{"requestRange":{"key":"YQ=="}}]}`, "/v3/lease/leases": `{}`,
	} {
		status, answer := request(t, s, "POST", path, body, nil)
		assert.Equal(t, 200, status, "%s: %s", path, answer)
	}
}

func TestGatewayOff(t *testing.T) {
	t.Parallel()
	cfg := config(t, "127.0.0.1:0")
	cfg.Gateway = false
	s := start(t, cfg)
	status, body := request(t, s, "POST", "/v3/kv/put", `{"key":"YQ=="}`, nil)
	require.Equal(t, 404, status)
	require.Contains(t, body, "--etcd-gateway")
	status, _ = request(t, s, "GET", "/debug/vars", "", nil)
	require.Equal(t, 404, status, "debug")
	_, err := etcdtest.Client(t, s.Endpoint()).Put(t.Context(), "/a", "b")
	require.NoError(t, err)
}
