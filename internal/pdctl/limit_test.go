package pdctl_test

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pdmesh/pdmesh/sim/testkit"
)

func TestLimit(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.want(0, "No limits. Set one with: pdctl limit set KEY --rpm N\n", "limit", "list")
	assert.Contains(t, r.ok("limit", "set", "team-a", "--rpm", "600", "--dry-run"),
		`put     /pd/limits/team-a {"v":1,"rpm":600}`)
	r.want(0, "limits/team-a: set\n", "limit", "set", "team-a", "--rpm", "600", "--concurrent", "5", "--reason", "trial")
	r.want(0, "limits/team-a: unchanged\n", "limit", "set", "team-a", "--rpm", "600", "--concurrent", "5")
	r.want(0, "limits/b: set\n", "limit", "set", "b", "--uncached-tpm", "7", "--reason", "0")
	r.put("/pd/limits/c", `{"v":2}`)
	require.True(t, testkit.Contains(t, r.ok("limit", "list"), "team-a  600                                       5", "version 2"))
	if code, out, errs := r.run("doctor", "--agents=false"); code != 5 || !strings.Contains(out, "limits/c: its limits in etcd are invalid") || !strings.Contains(out, "pdctl limit rm c ") || !strings.Contains(errs, "1 error, 0 warnings") {
		t.Errorf("%d %s %s", code, out, errs)
	}
	_, out, _ := r.run("limit", "list", "-o", "json")
	var list struct {
		Limits []struct {
			Key      string
			RPM      int64
			Revision int64
		}
	}
	if err := json.Unmarshal([]byte(out), &list); err != nil || len(list.Limits) != 3 || list.Limits[2].Key != "team-a" || list.Limits[2].RPM != 600 || list.Limits[2].Revision == 0 {
		t.Errorf("%v: %s", err, out)
	}
	_, out, _ = r.run("limit", "rm", "team-a", "-o", "json")
	assert.Contains(t, out, `"outcome": "removed"`)
	r.want(1, "limits/team-a: failed: it has no limits; see pdctl limit list\n", "limit", "rm", "team-a")
	r.put("/pd/limits/c", `{"v":1,"rpm":"x"}`)
	require.Contains(t, r.ok("limit", "list"), "invalid limits: rpm: string in place of a whole number")
	for _, tc := range []struct{ args, want string }{
		{"set a", "invalid limits: none is set"}, {"set a --rpm 0", "--rpm 0: leave the flag out"}, {"set a --rpm -1", "rpm: -1 is not between 1 and"}, {"set a/b --rpm 1", "invalid name"}, {"rm", "accepts 1 arg"},
	} {
		errs := r.want(2, "", append([]string{"limit"}, strings.Fields(tc.args)...)...)
		assert.Contains(t, errs, tc.want, "%s: %s", tc.args, errs)
	}
}

// The use of a key is the sum over all proxies. A proxy that does not answer is named.
func TestUsage(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	var asked atomic.Int64
	proxy := func(status int, answer string) string {
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
			asked.Add(1)
			assert.True(t, q.URL.Path == "/usage" && q.Header.Get("X-Api-Key") == "k" && q.Method == http.MethodGet,
				"%s %s %v", q.Method, q.URL, q.Header)
			w.WriteHeader(status)
			_, _ = w.Write([]byte(answer))
		}))
		t.Cleanup(s.Close)
		return s.URL
	}
	one := proxy(200, `{"proxy":"p","keys":[{"key":"a","hour":{"requests":3,"input_tokens":40,"cached_tokens":10,"output_tokens":5,"refused":1},"in_flight":2}]}`)
	two := proxy(200, `{"proxy":"q","keys":[{"key":"a","hour":{"requests":4,"input_tokens":2,"refused":1}},{"key":"b","hour":{"requests":1}}]}`)
	broken := proxy(403, `{"detail":"Forbidden"}`)
	code, out, errs := r.run("usage", "--admin-key", "k", "--proxy", one, "--proxy", two, "--proxy", one)
	rows := strings.Join(strings.Fields(out), " ")
	assert.True(t, code == 0 && strings.Contains(rows, "a 7 2 42 10 5 2 b 1 0 0 0 0 0"), "%d %s %s", code, out, errs)
	code, out, errs = r.run("usage", "--admin-key", "k", "--proxy", one, "--proxy", broken, "-o", "json")
	if code != 1 || !strings.Contains(out, `"requests": 3`) || !strings.Contains(errs, "1 of 2 proxies did not answer") || !strings.Contains(errs, broken+": the proxy answered 403: Forbidden") {
		t.Errorf("%d %s %s", code, out, errs)
	}
	older := proxy(404, `{"detail":"Not Found"}`)
	if _, _, errs = r.run("usage", "--admin-key", "k", "--proxy", older); !strings.Contains(errs, older+": the proxy answered 404: Not Found; one of an older release has no /usage, and one with --admin-listen has it there only") {
		t.Error(errs)
	}
	before := asked.Load()
	twice, stop := r.background("usage", "--admin-key", "k", "--proxy", one, "--proxy", one, "--watch")
	testkit.Until(t, patience, func() int64 { return asked.Load() - before }, func(n int64) bool { return n >= 3 })
	stop(true)
	assert.Error(t, twice.has("did not answer"), "a proxy that is named twice: %s", twice)
	// A proxy registered in etcd is queried at its admin URL.
	r.put("/pd/proxies/p", `{"v":1,"id":"p","address":"[::]:8000","admin_url":"`+one+`"}`)
	r.put("/pd/proxies/q", `{"v":1,"id":"q","address":"`+strings.TrimPrefix(two, "http://")+`"}`) // of an older release
	code, out, errs = r.run("usage", "--admin-key", "k", "-o", "json")
	assert.True(t, code == 0 && strings.Contains(out, `"requests": 7`) && strings.Contains(out, `"proxies": 2`),
		"%d %s %s", code, out, errs)
	for _, address := range []string{"[::]:8000", "0.0.0.0:8000", ":8000", ""} {
		r.put("/pd/proxies/r", `{"v":1,"id":"r","address":"`+address+`"}`)
		if errs := r.want(1, "", "usage", "--admin-key", "k"); !strings.Contains(errs, `proxy r has no admin URL in etcd, and its address "`+address+`" names no host: name it by --proxy URL`) {
			t.Error(errs)
		}
	}
	r.leaves("q")
	r.leaves("r")
	again, stop := r.background("usage", "--admin-key", "k", "-o", "json", "--watch")
	testkit.Eventually(t, patience, func() error { return again.has(`"proxies": 1`) })
	r.put("/pd/proxies/q", `{"v":1,"id":"q","address":"`+strings.TrimPrefix(two, "http://")+`"}`)
	testkit.Eventually(t, patience, func() error { return again.has(`"proxies": 2`) })
	stop(true)
	_, _, errs = r.run("usage")
	assert.Contains(t, errs, "ADMIN_API_KEY")
}

// An address without a host is not dialled: another proxy may answer there.
func TestTop_PresenceWithoutHost(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	for i, address := range []string{"[::]:1", "0.0.0.0:1", ":1", ""} {
		id := strconv.Itoa(i)
		r.put("/pd/proxies/"+id, `{"v":1,"id":"`+id+`","address":"`+address+`"}`)
	}
	if _, out, errs := r.run("top", "--once"); strings.Count(out, "names no host") != 4 || strings.Contains(out, "http:") {
		t.Error(out, errs)
	}
}

// pdctl trusts only the CA of --proxy-ca, and sends the certificate of --proxy-cert.
func TestProxyRequiresACertificate(t *testing.T) {
	t.Parallel()
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		if q.URL.Path != "/metrics" {
			_, _ = io.WriteString(w, `{"id":"p"}`)
		}
	}))
	server.TLS = &tls.Config{ClientAuth: tls.RequireAnyClientCert}
	server.Config.ErrorLog = log.New(io.Discard, "", 0)
	server.StartTLS()
	t.Cleanup(server.Close)
	key, err := x509.MarshalPKCS8PrivateKey(server.TLS.Certificates[0].PrivateKey)
	require.NoError(t, err)
	cert, private := filepath.Join(t.TempDir(), "cert.pem"), filepath.Join(t.TempDir(), "key.pem")
	testkit.WriteFile(t, cert, string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})))
	testkit.WriteFile(t, private, string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: key})))
	for _, tc := range []struct {
		flags []string
		code  int
		says  string
	}{
		{nil, 1, "pdctl: the proxy does not answer: "},
		{[]string{"--proxy-ca", cert}, 1, "pdctl: the proxy requires a client certificate (--tls-client-ca): set --proxy-cert and --proxy-key: "},
		{[]string{"--proxy-ca", cert, "--proxy-cert", cert}, 2, "pdctl: set --proxy-cert and --proxy-key together"},
		{[]string{"--proxy-ca", private}, 2, "pdctl: certificates for proxies: "},
		{[]string{"--proxy-ca", cert, "--proxy-cert", cert, "--proxy-key", private}, 0, ""},
	} {
		code, _, errs := execute(t.Context(), nil, append([]string{"list", "--proxy", server.URL}, tc.flags...)...)
		assert.Equal(t, tc.code, code, "%v: %s", tc.flags, errs)
		assert.True(t, strings.HasPrefix(errs, tc.says), "%v: %s", tc.flags, errs)
	}
	r := newRig(t)
	r.put("/pd/proxies/p", `{"v":1,"id":"p","address":"10.0.0.9:8000","admin_url":"`+server.URL+`"}`)
	top := []string{"top", "--once", "-o", "json", "--proxy-ca", cert, "--proxy-cert", cert}
	r.want(2, "", top...)
	assert.Contains(t, r.ok(append(top, "--proxy-key", private)...), `"source": "metrics"`)
}

// A TLS error of a proxy connection names the reason and the flag.
func TestProxyRefusedByTLS(t *testing.T) {
	t.Parallel()
	a, other := testkit.NewAuthority(t, "fleet"), testkit.NewAuthority(t, "strangers")
	a.Issue("proxy", testkit.Certificate{Hosts: []string{"localhost"}})
	cert, key := other.Issue("stranger", testkit.Certificate{CN: "stranger"})
	server := httptest.NewUnstartedServer(http.NotFoundHandler())
	server.TLS = &tls.Config{Certificates: []tls.Certificate{a.Pair("proxy")}, ClientCAs: a.Pool(), ClientAuth: tls.RequireAndVerifyClientCert}
	server.Config.ErrorLog = log.New(io.Discard, "", 0)
	server.StartTLS()
	t.Cleanup(server.Close)
	local := strings.Replace(server.URL, "127.0.0.1", "localhost", 1)
	shown := []string{"--proxy-cert", cert, "--proxy-key", key}
	for _, tc := range []struct {
		url, ca    string
		cert       []string
		says, cure string
	}{
		{local, other.CA, shown, `its certificate is signed by an unknown authority ("CN=fleet")`, "name its CA with --proxy-ca"},
		{server.URL, a.CA, shown, "its certificate is for another name", "name it by --proxy https://HOST:PORT"},
		{local, a.CA, shown, "it rejected our certificate", "set --proxy-cert and --proxy-key"},
		{local, a.CA, nil, "it requires a client certificate", "set --proxy-cert and --proxy-key"},
	} {
		flags := append([]string{"--proxy-ca", tc.ca}, tc.cert...)
		code, _, errs := execute(t.Context(), nil, append([]string{"list", "--proxy", tc.url}, flags...)...)
		assert.True(t, code == 1 && strings.Contains(errs, tc.says) && strings.Contains(errs, tc.cure),
			"%s: %d %s", tc.says, code, errs)
		r := newRig(t)
		r.put("/pd/proxies/p", `{"v":1,"id":"p","address":"10.0.0.9:8000","admin_url":"`+tc.url+`"}`)
		_, out, _ := r.run(append([]string{"top", "--once"}, flags...)...)
		assert.Contains(t, out, tc.cure, "%s: %s", tc.says, out)
	}
}
