package pdctl_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"

	"github.com/pdmesh/pdmesh/internal/pdctl"
	"github.com/pdmesh/pdmesh/sim/testkit"
)

const patience = 60 * time.Second

// env returns the endpoint of a rig's etcd as an environment.
func (r *rig) env() map[string]string {
	return map[string]string{"PD_ETCD_ENDPOINTS": r.etcd.Endpoint()}
}

// A change that makes the last usable instance of a role unusable needs --yes.
func TestConfirm(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.put("/pd/decode/10.0.0.1:8200", `{"models":["m"]}`)
	r.put("/pd/decode/10.0.0.2:8200", `{"models":["m"],"state":"down"}`)
	for _, line := range []string{"drain decode/10.0.0.1:8200", "cordon decode/10.0.0.1:8200", "remove 10.0.0.1:8200", "weight 10.0.0.1:8200 0", "drain -l role=decode"} {
		args := strings.Fields(line)
		code, out, errs := execute(t.Context(), r.env(), args...)
		if code != 2 || out != "" || !strings.Contains(errs, "decode would have no usable instance left; nothing was done. Repeat the command with --yes") {
			t.Errorf("%s: exit %d\n%s%s", line, code, out, errs)
		}
		code, out, errs = execute(t.Context(), r.env(), append(args, "--dry-run")...)
		assert.Equal(t, 0, code, "%s --dry-run: exit\n%s%s", line, out, errs)
	}
	got := r.listings().Instances
	assert.True(t, got[0].Intent == "" && got[1].Intent == "" && *cmpOr(got[0].Weight) == 100, "%+v", got)
	for _, line := range []string{"drain decode/10.0.0.2:8200", "weight decode/10.0.0.1:8200 50", "drain decode/10.0.0.1:8200 --yes", "cordon decode/10.0.0.1:8200"} {
		code, out, errs := execute(t.Context(), r.env(), strings.Fields(line)...)
		assert.Equal(t, 0, code, "%s: exit\n%s%s", line, out, errs)
	}
}

func cmpOr(w *int) *int {
	if w != nil {
		return w
	}
	n := 100
	return &n
}

// Every verb accepts role/address, and an address that only one role has.
func TestNames(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.leased("/pd/decode/10.0.0.1:8200", `{"models":["m"]}`)
	r.leased("/pd/prefill/10.0.0.6:8100", `{"models":["m"]}`)
	r.leased("/pd/decode/10.0.0.6:8100", `{"models":["m"]}`)
	r.want(0, "decode/10.0.0.1:8200: drained\n", "drain", "decode/10.0.0.1:8200")
	r.want(0, "decode/10.0.0.1:8200: undrained; proxies use it again as it registers\n", "undrain", "10.0.0.1:8200")
	r.want(0, "decode/10.0.0.1:8200: weight 50\nprefill/10.0.0.6:8100: weight 50\n", "weight", "10.0.0.1:8200", "prefill/10.0.0.6:8100", "50")
	r.want(0, "both/10.0.0.6:8100: cordoned\n", "cordon", "both/10.0.0.6:8100")
	assert.Contains(t, r.want(2, "", "uncordon", "10.0.0.6:8100"), "10.0.0.6:8100 is prefill and decode")
	assert.Contains(t, r.want(1, "", "uncordon", "10.0.0.9:8100"), "there is no instance 10.0.0.9:8100")
	r.want(0, removed("decode", "10.0.0.1:8200"), "rm", "--yes", "10.0.0.1:8200")
	r.want(0, "decode/10.0.0.1:8200: allowed; proxies use it again when it registers\n", "allow", "10.0.0.1:8200")
	r.leased("/pd/decode/10.0.0.1:8200", `{"models":["m"]}`)
	r.want(0, "prefill/10.0.0.6:8100\ndecode/10.0.0.1:8200\ndecode/10.0.0.6:8100\n", "ls", "-o", "name")
	r.want(0, "prefill/10.0.0.6:8100\ndecode/10.0.0.6:8100\ndecode/10.0.0.1:8200\n", "list", "-o", "name", "--sort-by", "state")
	r.want(0, "decode/10.0.0.1:8200\n", "weight", "decode/10.0.0.1:8200", "70", "-o", "name")
	for _, args := range [][]string{{"get", "10.0.0.1:8200"}, {"history", "decode/10.0.0.1:8200"}} {
		assert.Contains(t, r.ok(args...), "decode/10.0.0.1:8200")
	}
	code, out, _ := r.run("version")
	assert.True(t, code == 0 && strings.HasPrefix(out, "pdctl 0."), "exit %d\n%s", code, out)
}

func TestWaitFor(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.leased("/pd/decode/10.0.0.1:8200", `{"models":["m"],"labels":{"rack":"3"}}`)
	out, stop := r.background("wait", "--for", "state=ready", "--count", "2")
	testkit.Eventually(t, patience, func() error { return out.has("waiting: 1 of at least 2 instances are ready") })
	r.leased("/pd/decode/10.0.0.2:8200", `{"models":["m"]}`)
	require.Equal(t, 0, stop(false), "exit\n%s", out.String())
	r.leased("/pd/prefill/10.0.0.3:8100", `{"models":["m"],"state":"starting"}`)
	for line, want := range map[string]struct {
		code int
		out  string
	}{
		"--for state=ready --selector rack=3":               {0, "decode/10.0.0.1:8200: ready\n"},
		"--for ready decode -o name":                        {0, "decode/10.0.0.1:8200\ndecode/10.0.0.2:8200\n"},
		"--for state=ready --timeout 300ms":                 {4, "after 300ms: 2 of 3 instances are ready: prefill/10.0.0.3:8100 starting"},
		"--for state=ready decode/10.0.0.9:1 --timeout 1ms": {4, "decode/10.0.0.9:1 not registered"},
		"--for state=removed prefill/10.0.0.9:1":            {0, "prefill/10.0.0.9:1: removed\n"},
		"--for ready decode=2":                              {0, "decode/10.0.0.1:8200: ready\ndecode/10.0.0.2:8200: ready\n"},
		"--for ready prefill=1 decode=3 --timeout 1ms":      {4, "prefill: 0 of at least 1 instances are ready: prefill/10.0.0.3:8100 starting; decode: 2 of at least 3 instances are ready"},
		"--for ready decode=0":                              {2, `"decode=0": use prefill=N and decode=N`},
		"--for ready decode=1 --count 2":                    {2, "use either --count N, or prefill=N decode=N"},
		"--for drained --count 1 --timeout 1ms":             {2, "state=drained: select the instances"},
		"--for drained decode=1 --timeout 1ms":              {2, "state=drained: select the instances"},
		"--for ready prefill decode":                        {2, "name one role, or the number of each: prefill=2 decode=3"},
		"--for state=removed -l rack=4":                     {0, "no instance is left\n"},
		"--for removed decode/10.0.0.1:8200 --timeout 1ms":  {4, "0 of 1 instances are removed: decode/10.0.0.1:8200 ready"},
		"--for ready -l rack=4 --timeout 1ms":               {4, "0 of at least 1 instances are ready"},
	} {
		code, out, errs := r.run(append([]string{"wait"}, strings.Fields(line)...)...)
		assert.True(t, code == want.code && strings.Contains(out+errs, want.out) && (code != 0 || out == want.out),
			"%s: exit %d\n%s%s", line, code, out, errs)
	}
	// An engine that has left after its drain counts as drained once no proxy has requests there.
	const left = "decode/10.0.0.7:8200"
	r.want(0, left+": drained\n", "drain", left, "--force")
	r.want(0, left+": drained\n", "wait", "--for", "drained", left, "--timeout", "2s")
	r.say("a", r.revision("/pd/override/"+left), `"`+left+`":{"in_flight":1}`)
	assert.Contains(t, r.want(4, "", "wait", "--for", "drained", left, "--timeout", "1ms"), "has in flight: 1 on "+left)
	r.ok("undrain", left)
	r.ok("remove", "decode/10.0.0.2:8200")
	for _, k := range []string{left, "decode/10.0.0.2:8200"} {
		errs := r.want(1, "", "wait", "--for", "drained", left, k, "--timeout", "1m")
		assert.Contains(t, errs, k+" is neither registered nor drained", "%q", errs)
		r.ok("drain", left, "--force")
	}
	// An instance is drained only once the proxy has reported that nothing is in flight.
	r.say("a", 1, `"decode/10.0.0.1:8200":{"in_flight":1}`)
	out, stop = r.background("wait", "--for", "state=drained", "10.0.0.1:8200")
	testkit.Eventually(t, patience, func() error { return out.has("0 of 1 instances are drained") })
	r.want(0, "decode/10.0.0.1:8200: drained\n", "drain", "10.0.0.1:8200")
	testkit.Eventually(t, patience, func() error { return out.has("0 of 1 proxy done") })
	r.say("a", r.revision("/pd/override/decode/10.0.0.1:8200"), "")
	if code := stop(false); code != 0 || !strings.HasSuffix(out.String(), "decode/10.0.0.1:8200: drained\n") {
		t.Errorf("exit %d\n%s", code, out.String())
	}
}

// With --proxy, the fleet is read from a proxy, without etcd.
func TestReadFromProxy(t *testing.T) {
	t.Parallel()
	mux := http.NewServeMux()
	mux.HandleFunc("GET /status", func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, `{"id":"01M8","version":"0.9","revision":7,"notices":["one \u001b[2Jproblem"],"etcd":{"state":"stale","last_contact":"2026-11-26T10:00:00Z"},
			"instances":[{"role":"prefill","address":"10.0.0.7:8100","status":"ready","state":"ready","models":["m"],"revision":3,"in_flight":2},
			{"role":"decode","address":"10.0.0.8:8200","status":"draining","state":"ready","intent":"drain","reason":"disks","models":["m"],"revision":4},
			{"role":"decode","address":"10.0.0.9:8300","status":"decode-only","state":"ready","intent":"drain","only_role":"decode","models":["m"],"revision":5}]}`)
	})
	srv := httptest.NewServer(mux)
	t.Cleanup(srv.Close)
	env := map[string]string{"PD_ETCD_ENDPOINTS": testkit.FreePort(t)}
	for line, want := range map[string]string{
		"list":                      "decode   10.0.0.8:8200  draining     -    -          100     leased  m       -          disks\n",
		"list -l state=drain":       "decode  10.0.0.8:8200",
		"list -l state=decode-only": "decode  10.0.0.9:8300",
		"list -o name":              "prefill/10.0.0.7:8100\ndecode/10.0.0.8:8200\ndecode/10.0.0.9:8300\n",
		"list prefill -o json":      `"in_flight": 2`,
		"get 10.0.0.8:8200":         "STATE        draining\n",
		"status":                    "notice: one \\u001b[2Jproblem\n",
		"status -o json":            `"state": "stale"`,
	} {
		code, out, errs := execute(t.Context(), env, append(strings.Fields(line), "--proxy", srv.URL)...)
		assert.True(t, code == 0 && strings.Contains(out, want),
			"%s: exit %d, %q is not in\n%s%s", line, code, want, out, errs)
	}
	code, _, errs := execute(t.Context(), env, "list", "-l", "rack=3", "--proxy", srv.URL)
	assert.True(t, code == 2 && strings.Contains(errs, "does not show labels"), "exit %d\n%s", code, errs)
}

// status --proxy fails, too, while the proxy can serve nothing.
func TestStatus_ProxyServesNothing(t *testing.T) {
	t.Parallel()
	const sentence = "no decode instance is registered: nothing is served"
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, `{"id":"01M8","notices":["a certificate expires at noon","`+sentence+`"],"etcd":{"state":"stale"},"instances":[]}`)
	}))
	t.Cleanup(srv.Close)
	for _, format := range []string{"table", "json"} {
		code, out, errs := execute(t.Context(), nil, "status", "--proxy", srv.URL, "-o", format)
		if code != 1 || !strings.Contains(out, sentence) || !strings.Contains(errs, "nothing is served by this proxy") {
			t.Errorf("-o %s: exit %d\n%s%s", format, code, out, errs)
		}
	}
}

// wait --for also retries until etcd answers; --watch prints a changed list again.
func TestWatchOfLists(t *testing.T) {
	t.Parallel()
	away := testkit.FreePort(t)
	code, _, errs := execute(t.Context(), map[string]string{"PD_ETCD_ENDPOINTS": away}, "wait", "--for", "state=ready", "--timeout", "1s")
	assert.Equal(t, 4, code, "exit\n%s", errs)
	assert.Equal(t, 2, strings.Count(errs, "etcd does not answer: "+away+" ("), "exit\n%s", errs)
	r := newRig(t)
	r.put("/pd/decode/10.0.0.1:8200", `{"models":["m"]}`)
	out, stop := r.background("list", "--watch")
	testkit.Eventually(t, patience, func() error { return out.has("10.0.0.1:8200  ready") })
	r.put("/pd/decode/10.0.0.1:8200", `{"models":["m"],"state":"down"}`)
	testkit.Eventually(t, patience, func() error { return out.has("10.0.0.1:8200  down") })
	assert.Equal(t, 0, stop(true), "exit")
	var revision atomic.Int64
	var fails atomic.Bool
	revision.Store(100)
	proxy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if fails.Load() {
			w.WriteHeader(http.StatusBadGateway)
		}
		_, _ = fmt.Fprintf(w, `{"id":"p","revision":%d,"instances":[{"role":"decode","address":"10.0.0.1:%[1]d"}]}`, revision.Load())
	}))
	t.Cleanup(proxy.Close)
	// For programs, each print is a separate document, and stdout has nothing else, also after an error.
	for _, format := range []string{"json", "yaml", "name"} {
		var docs, errs lockedBuffer
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan int)
		go func() {
			done <- pdctl.Run(ctx, []string{"list", "--watch", "-o", format, "--proxy", proxy.URL}, &docs, &errs, func(string) (string, bool) { return "", false })
		}()
		first := revision.Load()
		testkit.Eventually(t, patience, func() error { return docs.has(strconv.FormatInt(first, 10)) })
		fails.Store(true)
		testkit.Eventually(t, patience, func() error {
			if docs.has("answered 502") == nil {
				return nil
			}
			return errs.has("answered 502")
		})
		fails.Store(false)
		revision.Add(1)
		testkit.Eventually(t, patience, func() error { return docs.has(strconv.FormatInt(first+1, 10)) })
		cancel()
		<-done
		assert.NoError(t, errs.has("from proxy"))
		if format == "name" {
			assert.Equal(t, fmt.Sprintf("decode/10.0.0.1:%d\n\ndecode/10.0.0.1:%d\n", first, first+1), docs.String())
			continue
		}
		decode := json.NewDecoder(strings.NewReader(docs.String())).Decode
		if format == "yaml" {
			decode = yaml.NewDecoder(strings.NewReader(docs.String())).Decode
		}
		for range 2 {
			var doc struct{ Revision int64 }
			err := decode(&doc)
			assert.True(t, err == nil && doc.Revision != 0, "%s: %+v, %v\n%s", format, doc, err, docs.String())
		}
	}
}

// fullDisk is an output that cannot be written.
type fullDisk struct{}

func (fullDisk) Write([]byte) (int, error) { return 0, syscall.ENOSPC }

// A command whose output cannot be written fails, whichever part of it is lost.
func TestOutputFails(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.put("/pd/decode/10.0.0.1:8200", `{"models":["m"]}`)
	for _, line := range []string{"version", "list", "list -o name", "list --watch", "get decode/10.0.0.1:8200", "status", "history", "drain --yes decode/10.0.0.1:8200"} {
		var errs bytes.Buffer
		code := pdctl.Run(t.Context(), strings.Fields(line), fullDisk{}, &errs, func(name string) (string, bool) { v, ok := r.env()[name]; return v, ok })
		assert.True(t, code == 1 && strings.Contains(errs.String(), "write output: no space left on device"),
			"%s: exit %d\n%s", line, code, &errs)
	}
}
