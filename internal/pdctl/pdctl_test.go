package pdctl_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/goleak"

	"github.com/pdmesh/pdmesh/internal/discovery"
	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/internal/pdctl"
	"github.com/pdmesh/pdmesh/internal/testkit"
	"github.com/pdmesh/pdmesh/internal/vllm"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// rig is an etcd and pdctl pointed at it.
type rig struct {
	t    *testing.T
	etcd *testkit.Etcd
	cli  *clientv3.Client
}

func newRig(t *testing.T) *rig {
	t.Helper()
	e := testkit.StartEtcd(t)
	return &rig{t: t, etcd: e, cli: e.Client(t)}
}

// run executes one command line.
func (r *rig) run(args ...string) (code int, stdout, stderr string) {
	r.t.Helper()
	return r.runEnv(map[string]string{"PD_ETCD_ENDPOINTS": r.etcd.Endpoint()}, args...)
}

func (r *rig) runEnv(env map[string]string, args ...string) (code int, stdout, stderr string) {
	r.t.Helper()
	return execute(r.t.Context(), env, args...)
}

func execute(ctx context.Context, env map[string]string, args ...string) (code int, stdout, stderr string) {
	var out, errs bytes.Buffer
	code = pdctl.Run(ctx, args, &out, &errs, func(name string) (string, bool) { v, ok := env[name]; return v, ok })
	return code, out.String(), errs.String()
}

// want runs a command line and compares code and output.
func (r *rig) want(code int, stdout string, args ...string) string {
	r.t.Helper()
	got, out, errs := r.run(args...)
	if got != code {
		r.t.Errorf("pdctl %s: exit %d, want %d\n%s%s", strings.Join(args, " "), got, code, out, errs)
	}
	if d := cmp.Diff(stdout, out); d != "" {
		r.t.Errorf("pdctl %s (-want +got)\n%s", strings.Join(args, " "), d)
	}
	return errs
}

func (r *rig) put(key, value string) {
	r.t.Helper()
	if _, err := r.cli.Put(r.t.Context(), key, value); err != nil {
		r.t.Fatal(err)
	}
}

func (r *rig) listings() (out struct {
	Revision  int64
	Instances []instance.Listing
}) {
	r.t.Helper()
	_, text, errs := r.run("list", "-o", "json")
	if err := json.Unmarshal([]byte(text), &out); err != nil {
		r.t.Fatalf("%v\n%s%s", err, text, errs)
	}
	return out
}

// startEngine answers as vLLM's side endpoints do; it gives its host:port.
func startEngine(t *testing.T, model string) string {
	t.Helper()
	mux := http.NewServeMux()
	mux.HandleFunc("/health", func(http.ResponseWriter, *http.Request) {})
	mux.HandleFunc("/version", func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, `{"version":"0.12.0"}`) })
	mux.HandleFunc("/v1/models", func(w http.ResponseWriter, req *http.Request) {
		if strings.HasPrefix(model, "secret") && req.Header.Get("Authorization") != "Bearer k" {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		_, _ = fmt.Fprintf(w, `{"data":[{"id":%q,"max_model_len":4096}]}`, model)
	})
	srv := httptest.NewServer(mux)
	t.Cleanup(srv.Close)
	return strings.TrimPrefix(srv.URL, "http://")
}

func TestAddListRemove(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	p, d, dead := startEngine(t, "org/m"), startEngine(t, "org/m"), testkit.FreePort(t)

	r.want(0, "No instances below /pd/. Add one with: pdctl add prefill host:port\n", "list")
	r.want(0, "prefill/"+p+": added, serves org/m\n", "add", "prefill", p, "--model", "m", "--connector", "nixl")
	r.want(0, "prefill/"+p+": is there already; left as it is\n", "add", "prefill", p)
	errs := r.want(1, "decode/"+d+": added, serves org/m\n"+
		"decode/"+dead+": failed: GET http://"+dead+"/v1/models: connection refused: is vLLM running at "+dead+"?; start it, or use --wait to have it added when it answers\n",
		"add", "decode", d, dead)
	if !strings.Contains(errs, "1 of 2 failed") {
		t.Errorf("stderr %q", errs)
	}

	got := r.listings()
	if len(got.Instances) != 2 || got.Revision == 0 {
		t.Fatalf("%+v", got)
	}
	first := got.Instances[0]
	want := instance.Listing{
		Role: instance.Prefill, Address: p, State: instance.Ready, Static: true, ID: first.ID,
		Models: []string{"org/m"}, Connector: "nixl", Source: "admin", Version: "0.12.0", Revision: first.Revision,
	}
	if d := cmp.Diff(want, first); d != "" {
		t.Error(d)
	}
	_, table, _ := r.run("list", "decode")
	if strings.Contains(table, p) || !strings.Contains(table, "decode  "+d+"  ready  static  org/m   admin") {
		t.Errorf("list decode:\n%s", table)
	}

	r.want(0, "prefill/"+p+": removed\n", "remove", "prefill", p, "--reason", "test")
	r.want(1, "prefill/"+p+": failed: there is no such instance; see pdctl list\n", "remove", "prefill", p)
	if got := r.listings(); len(got.Instances) != 1 {
		t.Errorf("after removal: %+v", got)
	}
	// Adding lifts the removal.
	r.want(0, "prefill/"+p+": added, serves org/m\n", "add", "prefill", p)
	if got := r.listings(); got.Instances[0].Intent != "" {
		t.Errorf("after adding again: %+v", got.Instances[0])
	}
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
	if err := json.Unmarshal([]byte(out), &got); err != nil || code != 1 || len(got.Results) != 2 {
		t.Fatalf("%v, exit %d\n%s%s", err, code, out, errs)
	}
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
	// Waiting does not make a key right.
	r.want(1, "prefill/"+secret+": failed: GET http://"+secret+"/v1/models: HTTP 401: the engine wants an API key (--engine-api-key)\n",
		"add", "prefill", secret, "--wait")
	code, out, errs := r.runEnv(map[string]string{"PD_ETCD_ENDPOINTS": r.etcd.Endpoint(), "OPENAI_API_KEY": "k"}, "add", "prefill", secret)
	if code != 0 {
		t.Errorf("with the key: %d\n%s%s", code, out, errs)
	}
	if got := r.listings(); len(got.Instances) != 1 {
		t.Errorf("%+v", got)
	}
}

func TestAddWhatIsThere(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	p := startEngine(t, "m")
	r.put("/pd/prefill/"+p, "{broken")
	_, out, _ := r.run("add", "prefill", p)
	if !strings.Contains(out, "failed: is there already, but rejected: broken JSON") || !strings.Contains(out, "pdctl remove") {
		t.Errorf("%s", out)
	}
	r.put("/pd/decode/"+p, `{"models":["m"],"state":"down"}`)
	r.want(0, "decode/"+p+": is there already (down); left as it is\n", "add", "decode", p)
	r.want(0, "decode/"+p+": is there already (down); left as it is\n", "add", "decode", p, "--wait", "--reason=x")
}

func TestAddNoVerify(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	dead := testkit.FreePort(t)
	r.want(0, "decode/"+dead+": added unverified; proxies use it when it answers them\n", "add", "decode", dead, "--no-verify")
	got := r.listings()
	if len(got.Instances) != 1 || got.Instances[0].View != instance.Unverified || !got.Instances[0].Static {
		t.Errorf("%+v", got)
	}
}

func TestAddWait(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	dead := testkit.FreePort(t)
	errs := r.want(0, "Waiting for decode/"+dead+": GET http://"+dead+"/v1/models: connection refused: is vLLM running at "+dead+"?\n",
		"add", "decode", dead, "--wait", "--model", "m")
	if !strings.Contains(errs, "no proxy is running") {
		t.Errorf("stderr %q", errs)
	}
	got := r.listings()
	if len(got.Instances) != 1 || got.Instances[0].View != instance.Pending {
		t.Fatalf("%+v", got)
	}
	_, out, _ := r.run("get", "decode/"+dead)
	if !strings.HasPrefix(out, "pending\n  key       /pd/pending/decode/"+dead+"\n") || !strings.Contains(out, `"model":"m"`) {
		t.Errorf("get:\n%s", out)
	}
	// A pending add with a limit has a lease; another wait replaces the first.
	r.run("add", "decode", dead, "--wait=10m")
	_, out, _ = r.run("get", "decode", dead, "-o", "json")
	if !strings.Contains(out, `"granted_ttl": 600`) {
		t.Errorf("get:\n%s", out)
	}
	r.want(0, "decode/"+dead+": removed\n", "remove", "decode", dead)
	if n := pendings(r); n != 0 {
		t.Errorf("%d pending after removal", n)
	}
}

func pendings(r *rig) (n int) {
	for _, in := range r.listings().Instances {
		if in.View == instance.Pending {
			n++
		}
	}
	return n
}

// promoter runs what a proxy runs: a watcher that verifies and promotes.
func promoter(t *testing.T, r *rig) {
	t.Helper()
	layout, err := discovery.NewLayout("/pd")
	if err != nil {
		t.Fatal(err)
	}
	w := discovery.NewWatcher(r.etcd.Client(t), discovery.WatcherOptions{
		Layout: layout, Prober: vllm.New(""), WaitingInterval: 50 * time.Millisecond, Actor: "test",
	})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- w.Run(ctx) }()
	t.Cleanup(func() { cancel(); <-done })
}

func TestAddWaitBlock(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	promoter(t, r)
	late, gone := testkit.FreePort(t), testkit.FreePort(t)
	out, stop := r.background("add", "prefill", late, gone, "--wait", "--block")
	testkit.Eventually(t, 20*time.Second, func() error {
		if n := pendings(r); n != 2 {
			return fmt.Errorf("%d pending", n)
		}
		return nil
	})
	srv := &http.Server{Addr: late, Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, `{"data":[{"id":"m"}]}`)
	})}
	served := make(chan error, 1)
	go func() { served <- srv.ListenAndServe() }()
	t.Cleanup(func() { _ = srv.Close(); <-served })
	testkit.Eventually(t, 20*time.Second, func() error { return out.has("prefill/" + late + ": added\n") })
	if code, _, errs := r.run("remove", "prefill", gone); code != 0 {
		t.Fatal(errs)
	}
	testkit.Eventually(t, 20*time.Second, func() error {
		return out.has("prefill/" + gone + ": failed: no longer waited for")
	})
	if code := stop(false); code != 1 {
		t.Errorf("exit %d\n%s", code, out)
	}
}

func TestAddWaitBlockInterrupted(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	out, stop := r.background("add", "prefill", testkit.FreePort(t), "--wait", "--block")
	testkit.Eventually(t, 20*time.Second, func() error { return out.has("Waiting for") })
	if code := stop(true); code != 1 || out.has("the pending adds stay") != nil || pendings(r) != 1 {
		t.Errorf("exit %d\n%s", code, out)
	}
}

// lockedBuffer collects output of a command that runs on.
type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

func (l *lockedBuffer) has(part string) error {
	if s := l.String(); !strings.Contains(s, part) {
		return fmt.Errorf("%q is not in\n%s", part, s)
	}
	return nil
}

// background starts a command; stop waits for its end, after an interrupt if asked.
func (r *rig) background(args ...string) (*lockedBuffer, func(interrupt bool) int) {
	r.t.Helper()
	ctx, cancel := context.WithCancel(r.t.Context())
	out := &lockedBuffer{}
	done := make(chan int, 1)
	go func() {
		done <- pdctl.Run(ctx, args, out, out, func(name string) (string, bool) {
			return r.etcd.Endpoint(), name == "PD_ETCD_ENDPOINTS"
		})
	}()
	var once sync.Once
	code := 0
	stop := func(interrupt bool) int {
		once.Do(func() {
			if interrupt {
				cancel()
			}
			code = <-done
			cancel()
		})
		return code
	}
	r.t.Cleanup(func() { stop(true) })
	return out, stop
}

func TestGet(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	lease, err := r.cli.Grant(t.Context(), 60)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := r.cli.Put(t.Context(), "/pd/prefill/10.0.0.7:8100", "{\"v\":1,\"x\":\"\x1b[2J\"}", clientv3.WithLease(lease.ID)); err != nil {
		t.Fatal(err)
	}
	r.put("/pd/override/prefill/10.0.0.7:8100", `{"v":1,"state":"drain"}`)
	code, out, errs := r.run("get", "prefill/10.0.0.7:8100")
	if code != 0 {
		t.Fatal(errs)
	}
	for _, want := range []string{
		"record\n  key       /pd/prefill/10.0.0.7:8100\n  value     {\"v\":1,\"x\":\"\\u001b[2J\"}\n",
		fmt.Sprintf("lease     %x, ", lease.ID), " of 60 s left\n",
		"\noverride\n  key       /pd/override/prefill/10.0.0.7:8100\n", "  lease     none\n", "written 1 times",
	} {
		if !strings.Contains(out, want) {
			t.Errorf("%q is not in\n%s", want, out)
		}
	}
	r.put("/pd/decode/10.0.0.7:8100", "")
	if _, out, _ := r.run("get", "decode/10.0.0.7:8100"); !strings.Contains(out, "(empty: a bare registration)") || !strings.Contains(out, "none (static)") {
		t.Errorf("bare:\n%s", out)
	}
	if errs := r.want(1, "", "get", "decode/10.0.0.9:1"); !strings.Contains(errs, "nothing of decode/10.0.0.9:1 is in etcd below /pd/") {
		t.Errorf("stderr %q", errs)
	}
}

func TestHostileEntriesAreShownEscaped(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	const evil = "\x1b]0;owned\x07\u202e\r\n\x00"
	r.put("/pd/prefill/10.0.0.1:1", "{broken "+evil)
	r.put("/pd/prefill/10.0.0.2:1", `{"models":["m`+strings.ReplaceAll(strings.ReplaceAll(strings.ReplaceAll(strings.ReplaceAll(evil, "\x1b", `\u001b`), "\x07", `\u0007`), "\r\n", `\r\n`), "\x00", `\u0000`)+`"],"connector":"\u001b[1m"}`)
	r.put("/pd/prefill/"+evil+":1", "")
	r.put("/pd/decode/10.0.0.3:1", "\xff\xfe\x00")
	r.put("/pd/decode/10.0.0.4:1", strings.Repeat("x", 1<<20))
	r.put("/pd/override/decode/10.0.0.3:1", `{"state":"drain","reason":"\u001b[2J"}`)
	r.put("/pd/proxies/p1", `{"address":"\u001b[2J","version":"`+"\u202e"+`"}`)
	for _, args := range [][]string{
		{"list"}, {"list", "-o", "json"}, {"status"}, {"status", "-o", "json"},
		{"get", "prefill/10.0.0.1:1"}, {"get", "prefill/10.0.0.2:1"}, {"get", "decode/10.0.0.3:1", "-o", "json"}, {"get", "decode/10.0.0.4:1"},
	} {
		code, out, errs := r.run(args...)
		if code != 0 {
			t.Errorf("%v: exit %d\n%s%s", args, code, out, errs)
		}
		if strings.ContainsAny(out+errs, "\x1b\x07\r\x00\u202e\xff") {
			t.Errorf("%v: control characters in %q", args, out+errs)
		}
		if len(out) > 200<<10 {
			t.Errorf("%v: %d bytes of output", args, len(out))
		}
	}
	rejected := 0
	var odd string
	for _, in := range r.listings().Instances {
		if in.View == instance.Rejected {
			rejected++
			if in.Reason == "" {
				t.Errorf("no reason: %+v", in)
			}
			if !strings.HasPrefix(in.Address, "10.") {
				odd = in.Address
			}
		}
	}
	if rejected != 4 {
		t.Errorf("%d rejected", rejected)
	}
	// A key that is not even an address can be got rid of by what list shows.
	if code, out, errs := r.run("remove", "prefill", odd); code != 0 {
		t.Errorf("remove %q: %d\n%s%s", odd, code, out, errs)
	}
	for _, in := range r.listings().Instances {
		if in.Address == odd && in.Intent != instance.Removed {
			t.Errorf("still there: %+v", in)
		}
	}
}

func TestWatch(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.put("/pd/prefill/10.0.0.1:1", `{"models":["m"]}`)
	out, stop := r.background("watch", "--initial")
	lines, stopJSON := r.background("watch", "-o", "json")
	ready := func(o *lockedBuffer) func() error {
		return func() error { return o.has("Watching 1 instances from revision") }
	}
	testkit.Eventually(t, 20*time.Second, ready(out))
	testkit.Eventually(t, 20*time.Second, ready(lines))

	r.put("/pd/decode/10.0.0.2:1", `{"models":["m"]}`)
	testkit.Eventually(t, 20*time.Second, func() error { return out.has("  +  decode/10.0.0.2:1  ready  static m\n") })
	r.put("/pd/decode/10.0.0.2:1", `{"models":["m"],"state":"down"}`)
	testkit.Eventually(t, 20*time.Second, func() error {
		return out.has("  ~  decode/10.0.0.2:1  down  state ready -> down\n")
	})
	if err := out.has("  =  prefill/10.0.0.1:1  ready  static m\n"); err != nil {
		t.Error(err)
	}

	r.etcd.Restart()
	r.cli = r.etcd.Client(t)
	if _, err := r.cli.Delete(t.Context(), "/pd/decode/10.0.0.2:1"); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, 30*time.Second, func() error { return out.has("  -  decode/10.0.0.2:1  gone  static m\n") })
	testkit.Eventually(t, 30*time.Second, func() error { return lines.has(`"change":"removed"`) })

	if code := stop(true); code != 0 {
		t.Errorf("exit %d", code)
	}
	if code := stopJSON(true); code != 0 {
		t.Errorf("exit %d", code)
	}
	var changes []string
	for line := range strings.Lines(lines.String()) {
		if !strings.HasPrefix(line, "{") {
			continue
		}
		var c struct {
			Change, Address, Time string
			At                    int64 `json:"at_revision"`
			What                  []string
		}
		if err := json.Unmarshal([]byte(line), &c); err != nil || c.At == 0 || c.Time == "" {
			t.Errorf("%v: %s", err, line)
		}
		changes = append(changes, c.Change+" "+c.Address+" "+strings.Join(c.What, ";"))
	}
	want := []string{"added 10.0.0.2:1 ", "changed 10.0.0.2:1 state ready -> down", "removed 10.0.0.2:1 "}
	if d := cmp.Diff(want, changes); d != "" {
		t.Error(d)
	}
}

func TestStatus(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.put("/pd/prefill/10.0.0.1:1", `{"models":["m"]}`)
	r.put("/pd/prefill/10.0.0.2:1", `{"models":["m"],"state":"down"}`)
	r.put("/pd/decode/10.0.0.2:1", "")
	r.put("/pd/proxies/p1", `{"address":"127.0.0.1:8000","version":"0.1.0","applied":3}`)
	code, out, errs := r.run("status")
	if code != 0 {
		t.Fatalf("exit %d\n%s%s", code, out, errs)
	}
	for _, want := range []string{
		r.etcd.Endpoint() + "  3.", "leader", "alarms: none", "keys below: /pd/", "\nrevision: ",
		"prefill          2  1 down, 1 ready\n", "decode           1  1 unverified\n", "p1     127.0.0.1:8000  0.1.0          3\n",
	} {
		if !strings.Contains(out, want) {
			t.Errorf("%q is not in\n%s", want, out)
		}
	}
	var rep struct {
		Endpoints []struct {
			Version string
			DBSize  int64 `json:"db_size"`
			Leader  bool
		}
		Counts  map[string]map[string]int
		Proxies []struct {
			ID      string
			Applied int64
		}
		Membership int64 `json:"membership_revision"`
	}
	_, out, _ = r.run("status", "-o", "json")
	if err := json.Unmarshal([]byte(out), &rep); err != nil {
		t.Fatal(err)
	}
	if rep.Counts["prefill"]["down"] != 1 || len(rep.Proxies) != 1 || rep.Proxies[0].Applied != 3 || rep.Endpoints[0].DBSize == 0 || !rep.Endpoints[0].Leader || rep.Membership == 0 {
		t.Errorf("%s", out)
	}
}

func TestStatusWithAlarm(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	server := r.etcd.Server().Server
	if _, err := server.Alarm(t.Context(), &etcdserverpb.AlarmRequest{
		Action: etcdserverpb.AlarmRequest_ACTIVATE, MemberID: uint64(server.MemberID()), Alarm: etcdserverpb.AlarmType_NOSPACE,
	}); err != nil {
		t.Fatal(err)
	}
	code, out, errs := r.run("status")
	if code != 1 || !strings.Contains(out, "alarms: NOSPACE on member") || !strings.Contains(errs, "etcd has an alarm: NOSPACE") {
		t.Errorf("exit %d\n%s%s", code, out, errs)
	}
	code, out, errs = r.run("add", "prefill", testkit.FreePort(t), "--no-verify")
	if code != 1 || !strings.Contains(out, "out of space") {
		t.Errorf("exit %d\n%s%s", code, out, errs)
	}
}

func TestUnreachableEtcd(t *testing.T) {
	t.Parallel()
	port := testkit.FreePort(t)
	env := map[string]string{"PD_ETCD_ENDPOINTS": port}
	for _, args := range [][]string{
		{"add", "prefill", "127.0.0.1:1"}, {"remove", "prefill", "127.0.0.1:1"}, {"list"}, {"get", "prefill/127.0.0.1:1"}, {"watch"}, {"status"},
	} {
		t.Run(args[0], func(t *testing.T) {
			t.Parallel()
			code, out, errs := execute(t.Context(), env, append(args, "--timeout", "500ms")...)
			if code != 1 || out != "" {
				t.Errorf("exit %d, output %q", code, out)
			}
			for _, want := range []string{"asked: " + port, "--etcd-endpoints", "Start etcd", "connection refused"} {
				if !strings.Contains(errs, want) {
					t.Errorf("%q is not in %q", want, errs)
				}
			}
		})
	}
}

func TestWrongUsage(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		args []string
		want string
	}{
		{[]string{"frobnicate"}, `unknown command "frobnicate"`},
		{[]string{"list", "both"}, `unknown role "both": use "prefill" or "decode"`},
		{[]string{"list", "prefill", "decode"}, "accepts at most 1 arg"},
		{[]string{"list", "--nope"}, "unknown flag: --nope"},
		{[]string{"list", "-o", "yaml"}, `-o "yaml": use table or json`},
		{[]string{"list", "--timeout", "0s"}, "--timeout 0s: must be more than zero"},
		{[]string{"list", "--timeout", "x"}, "invalid argument"},
		{[]string{"list", "--etcd-prefix", "/"}, "invalid etcd prefix"},
		{[]string{"list", "--etcd-prefix", "/mooncake"}, "Mooncake"},
		{[]string{"list", "--etcd-endpoints", "h"}, "write host:port"},
		{[]string{"list", "--etcd-endpoints", ""}, "--etcd-endpoints is empty"},
		{[]string{"list", "--etcd-endpoints", "https://h:1"}, "TLS to etcd is not supported"},
		{[]string{"list", "--etcd-password", "p"}, "--etcd-password without --etcd-username"},
		{[]string{"add"}, "requires at least 2 arg"},
		{[]string{"add", "prefill"}, "requires at least 2 arg"},
		{[]string{"add", "both", "h:1"}, "unknown role"},
		{[]string{"add", "prefill", "h:1", "0.0.0.0:1", "fd00::1:2"}, "wildcard"},
		{[]string{"add", "prefill", "h:1", "h"}, "nothing was done"},
		{[]string{"add", "prefill", "http://h:1"}, "without a scheme"},
		{[]string{"add", "prefill", "h:1", "--wait", "10m"}, "--wait=10m"},
		{[]string{"add", "prefill", "h:1", "--wait=soon"}, "write a duration"},
		{[]string{"add", "prefill", "h:1", "--wait=10ms"}, "at least a second"},
		{[]string{"add", "prefill", "h:1", "--wait", "--no-verify"}, "exclude each other"},
		{[]string{"add", "prefill", "h:1", "--model", "m", "--no-verify"}, "cannot be checked"},
		{[]string{"add", "prefill", "h:1", "--block"}, "--block needs --wait"},
		{[]string{"add", "prefill", "h:1", "--wait", "--strict-model"}, "--strict-model cannot wait"},
		{[]string{"add", "prefill", "127.0.0.1:1", "--etcd-endpoints", "10.0.0.1:2379"}, "is a loopback address"},
		{[]string{"remove", "prefill"}, "requires at least 2 arg"},
		{[]string{"remove", "both", "h:1"}, "unknown role"},
		{[]string{"get"}, "accepts between 1 and 2 arg"},
		{[]string{"get", "10.0.0.1:1"}, "role/host:port"},
		{[]string{"get", "prefill/10.0.0.1"}, "give host:port"},
		{[]string{"watch", "all"}, "unknown command"},
		{[]string{"status", "all"}, "unknown command"},
	} {
		t.Run(strings.Join(tc.args, " "), func(t *testing.T) {
			t.Parallel()
			code, out, errs := execute(t.Context(), nil, tc.args...)
			if code != 2 || out != "" {
				t.Errorf("exit %d, output %q", code, out)
			}
			if !strings.Contains(errs, tc.want) || !strings.Contains(errs, " --help.") {
				t.Errorf("stderr %q lacks %q", errs, tc.want)
			}
		})
	}
}

func TestRemoveOfABadAddressIsWrongUsage(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.put("/pd/prefill/10.0.0.1:1", "")
	if errs := r.want(2, "", "remove", "prefill", "10.0.0.1:1", "10.0.0.1"); !strings.Contains(errs, "nothing was done") {
		t.Errorf("stderr %q", errs)
	}
	if got := r.listings(); len(got.Instances) != 1 || got.Instances[0].Intent != "" {
		t.Errorf("%+v", got)
	}
}

func TestHelpAndVersion(t *testing.T) {
	t.Parallel()
	for _, sub := range []string{"", "add", "remove", "list", "get", "watch", "status"} {
		code, out, errs := execute(t.Context(), nil, strings.Fields(sub+" --help")...)
		if code != 0 || errs != "" || !strings.Contains(out, "Examples:\n  pdctl "+sub) || !strings.Contains(out, "--etcd-endpoints") {
			t.Errorf("pdctl %s --help: exit %d %s\n%s", sub, code, errs, out)
		}
	}
	if code, out, _ := execute(t.Context(), nil, "--version"); code != 0 || !strings.HasPrefix(out, "pdctl 0.") {
		t.Errorf("--version: exit %d %q", code, out)
	}
}

func TestDoesNotLinkTheEtcdServer(t *testing.T) {
	t.Parallel()
	out, err := exec.CommandContext(t.Context(), "go", "list", "-deps", "github.com/pdmesh/pdmesh/cmd/pdctl").CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if strings.Contains(string(out), "go.etcd.io/etcd/server") || !strings.Contains(string(out), "go.etcd.io/etcd/client/v3") {
		t.Error("pdctl links the etcd server, or nothing of etcd")
	}
}
