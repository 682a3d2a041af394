package pdctl_test

import (
	"net"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"

	"github.com/pdmesh/pdmesh/sim/testkit"
)

func TestUnreachableEtcd(t *testing.T) {
	t.Parallel()
	port := testkit.FreePort(t)
	env := map[string]string{"PD_ETCD_ENDPOINTS": port}
	for _, args := range [][]string{
		{"add", "prefill", "127.0.0.1:1"}, {"remove", "prefill", "127.0.0.1:1"}, {"allow", "prefill", "127.0.0.1:1"}, {"drain", "prefill", "127.0.0.1:1"}, {"uncordon", "prefill", "127.0.0.1:1"}, {"list"}, {"get", "prefill/127.0.0.1:1"}, {"watch"}, {"status"}, {"top", "--once"},
	} {
		t.Run(args[0], func(t *testing.T) {
			t.Parallel()
			code, out, errs := execute(t.Context(), env, append(args, "--timeout", "500ms")...)
			assert.Equal(t, 1, code)
			assert.Equal(t, "", out)
			testkit.Contains(t, errs, "Tried: "+port, "--etcd-endpoints", "Start etcd", "connection refused")
			if reads := slices.Contains([]string{"list", "get", "status"}, args[0]); strings.Contains(errs, "--proxy http://HOST:PORT") != reads {
				t.Errorf("a hint at --proxy: %v, in %q", !reads, errs)
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
		{[]string{"list", "-o", "xml"}, `-o "xml": use one of table, wide, json, yaml, name`},
		{[]string{"list", "--timeout", "0s"}, "--timeout: 0s: must be more than zero"},
		{[]string{"list", "--timeout", "x"}, `--timeout: bad value "x"`},
		{[]string{"list", "--etcd-prefix", "/"}, "invalid etcd prefix"},
		{[]string{"list", "--etcd-prefix", "/mooncake"}, "Mooncake"},
		{[]string{"list", "--etcd-endpoints", "h"}, "must be host:port"},
		{[]string{"list", "--etcd-endpoints", ""}, "--etcd-endpoints: bad value: an item of the list is empty"},
		{[]string{"list", "--etcd-endpoints", "https://h:1,http://i:1"}, "reached in one way"},
		{[]string{"list", "--etcd-cert", "c.pem"}, "--etcd-key together"},
		{[]string{"list", "--etcd-username", "u", "--etcd-password", "p", "--etcd-password-file", "f"}, "one of the two"},
		{[]string{"list", "--etcd-password", "p"}, "set --etcd-username and --etcd-password (or PD_ETCD_PASSWORD) together"},
		{[]string{"list", "--etcd-username", "u"}, "set --etcd-username and --etcd-password (or PD_ETCD_PASSWORD) together"},
		{[]string{"route"}, "use either --prompt TEXT, with --model if needed, or --explain"},
		{[]string{"route", "--prompt", "x", "--explain", "x"}, "use either --prompt TEXT"},
		{[]string{"route", "--explain", "x", "--model", "m"}, "use either --prompt TEXT"},
		{[]string{"revert"}, "name either a revision to return to"},
		{[]string{"revert", "7", "--only", "7"}, "or the one to undo with --only"},
		{[]string{"revert", "--only", "7", "--to", "8"}, "or the one to undo with --only"},
		{[]string{"revert", "--only", "0"}, "--only 0: name a revision of 2 or more"},
		{[]string{"revert", "0"}, "name a revision of 1 or more, not 0"},
		{[]string{"model", "route", "chat"}, `"chat": write NAME=TARGET`},
		{[]string{"route", "--explain", "x"}, "ADMIN_API_KEY"},
		{[]string{"route", "--explain", "root.go", "--admin-key", "k", "--proxy", "10.0.0.1:8000"}, "must be a URL such as"},
		{[]string{"usage", "--admin-key", "k", "--proxy", "10.0.0.1:8000"}, "must be a URL such as"},
		{[]string{"usage", "--admin-key", "k", "--proxy", "http://10.0.0.1:8000", "--proxy-ca", "none.pem"}, "certificates for proxies"},
		{[]string{"debug", "--proxy", "10.0.0.1:8000"}, "must be a URL such as"},
		{[]string{"model", "route", "c=m", "--for", "1s"}, "--for 1s: must be 2s or more"},
		{[]string{"model", "route", "c=m", "--for", "-1h"}, "--for -1h0m0s: must be 2s or more"},
		{[]string{"route", "--explain", "none.json", "--admin-key", "k", "--proxy", "http://10.0.0.1:8000"}, "--explain: open none.json: no such file"},
		{[]string{"apply", "-f", "none.yaml"}, "open none.yaml: no such file"},
		{[]string{"apply", "-f", "."}, "is a directory"},
		{[]string{"add"}, "requires at least 1 arg"},
		{[]string{"add", "prefill"}, "name the instances"},
		{[]string{"add", "10.0.0.1:1"}, "10.0.0.1:1 has no role"},
		{[]string{"drain", "decode", "prefill/10.0.0.1:1"}, "is not of role decode"},
		{[]string{"remvoe"}, "did you mean remove?"},
		{[]string{"delete", "x"}, "did you mean remove?"},
		{[]string{"auth", "inti"}, "did you mean init?"},
		{[]string{"status", "-o", "name"}, "does not have this format"},
		{[]string{"list", "--sort-by", "size"}, "in-flight"},
		{[]string{"wait"}, "use either --for"},
		{[]string{"wait", "--for", "state=asleep"}, "state=drained"},
		{[]string{"add", "all", "h:1"}, `use "prefill", "decode" or "both"`},
		{[]string{"add", "prefill", "h:1", "0.0.0.0:1", "fd00::1:2"}, "wildcard"},
		{[]string{"add", "prefill", "h:1", "h"}, "nothing was done"},
		{[]string{"add", "prefill", "http://h:1"}, "without a scheme"},
		{[]string{"add", "decode", "h:1", "--dp-size", "257"}, "1 to 256"},
		{[]string{"add", "decode", "h:1", "--connector", "lmcache"}, "--lmcache-init-port is missing"},
		{[]string{"add", "decode", "h:1", "--connector", "lmcache", "--lmcache-init-port", "1"}, "--lmcache-alloc-port is missing"},
		{[]string{"add", "decode", "h:1", "--connector", "lmcache", "--lmcache-init-port", "1,2", "--lmcache-alloc-port", "3"}, "one of each for every rank"},
		{[]string{"add", "decode", "h:1", "--connector", "lmcache", "--lmcache-init-port", "x", "--lmcache-alloc-port", "3"}, "no port from 1 to 65535"},
		{[]string{"add", "prefill", "h:1", "--connector", "lmcache", "--lmcache-init-port", "1"}, "are for decode instances with --connector lmcache"},
		{[]string{"add", "decode", "h:1", "--connector", "nixl", "--lmcache-host", "h"}, "are for decode instances with --connector lmcache"},
		{[]string{"add", "prefill", "h:1", "--wait", "10m"}, "--wait=10m"},
		{[]string{"add", "prefill", "h:1", "--wait=soon"}, "write a duration"},
		{[]string{"add", "prefill", "h:1", "--wait=10ms"}, "at least a second"},
		{[]string{"add", "prefill", "h:1", "--wait", "--no-verify"}, "exclude each other"},
		{[]string{"add", "prefill", "h:1", "--model", "m", "--no-verify"}, "cannot be checked"},
		{[]string{"add", "prefill", "h:1", "--connector", "teleport", "--no-verify"}, `--connector: unknown connector "teleport": known are plain, nixl`},
		{[]string{"add", "prefill", "h:1", "--block"}, "--block needs --wait"},
		{[]string{"add", "prefill", "h:1", "--wait", "--strict-model"}, "--strict-model and --wait exclude each other"},
		{[]string{"add", "prefill", "127.0.0.1:1", "--etcd-endpoints", "10.0.0.1:2379"}, "is a loopback address"},
		{[]string{"remove", "prefill"}, "name the instances"},
		{[]string{"remove", "all", "h:1"}, `use "prefill", "decode" or "both"`},
		{[]string{"get"}, "accepts between 1 and 2 arg"},
		{[]string{"get", "10.0.0.1"}, "unknown role"},
		{[]string{"get", "prefill/10.0.0.1"}, "must be host:port"},
		{[]string{"get", "decode/h:1", "decode/h:2"}, "name one instance, not decode/h:1 and decode/h:2"},
		{[]string{"history", "decode/h:1", "prefill/h:1"}, "name one instance"},
		{[]string{"events", "decode/h:1", "decode/h:2"}, "name one instance"},
		{[]string{"watch", "all"}, "unknown command"},
		{[]string{"status", "all"}, "unknown command"},
		{[]string{"top"}, "needs a terminal"},
		{[]string{"export", "file"}, "unknown command"},
		{[]string{"apply"}, "with -f"},
		{[]string{"drain", "decode", "10.0.0.8:8200", "--wait", "--dry-run"}, "--dry-run and --wait exclude each other"},
		{[]string{"add", "decode", "10.0.0.8:8200", "--wait", "--block", "--dry-run"}, "--dry-run and --block exclude each other"},
		{[]string{"drain", "decode", "--selector", "rack>3", "--dry-run"}, "write key=value"},
		{[]string{"drain", "decode", "--selector", "rack=3,", "--dry-run"}, "write key=value"},
		{[]string{"drain", "decode", "--selector", "rack=(3", "--dry-run"}, "write key=value"},
		{[]string{"drain", "decode", "--selector", "!state", "--dry-run"}, "every instance has a state"},
		{[]string{"weight", "decode", "10.0.0.8:8200", "-5"}, "invalid weight -5: must be between 0 and 10000"},
		{[]string{"weight", "decode", "10.0.0.8:8200", "100000"}, "invalid weight 100000: must be between 0 and 10000"},
		{[]string{"weight", "decode", "10.0.0.8:8200", "many"}, "invalid weight \"many\""},
		{[]string{"weight", "decode", "10.0.0.8:8200", "300", "-x"}, "unknown shorthand flag: 'x'"},
		{[]string{"drain", "decode", "10.0.0.8:8200", "--for", "soon"}, "or a number of seconds"},
		{[]string{"drain", "decode", "--selector", "state=asleep"}, "use one of starting, ready"},
		{[]string{"drain", "decode", "--selector", "role=both"}, `"prefill" or "decode"`},
		{[]string{"drain", "decode", "10.0.0.8:8200", "--selector", "rack=3"}, "with --selector, name only a role"},
		{[]string{"weight", "decode", "--selector", "rack=3"}, "invalid weight \"decode\""},
		{[]string{"events", "decode", "10.0.0.8:8200", "-o", "yaml"}, "events are text only"},
		{[]string{"auth", "init", "-o", "yaml"}, "this prints text only"},
		{[]string{"list", "--selector", "model="}, "name a model"},
	} {
		t.Run(strings.Join(tc.args, " "), func(t *testing.T) {
			t.Parallel()
			code, out, errs := execute(t.Context(), nil, tc.args...)
			assert.Equal(t, 2, code)
			assert.Equal(t, "", out)
			testkit.Contains(t, errs, tc.want, " --help.")
		})
	}
}

func TestRemove_BadAddress(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.put("/pd/prefill/10.0.0.1:1", "")
	assert.Contains(t, r.want(2, "", "remove", "prefill", "10.0.0.1:1", "10.0.0.1"), "nothing was done")
	got := r.listings()
	assert.True(t, len(got.Instances) == 1 && got.Instances[0].Intent == "", "%+v", got)
}

func TestHelpAndVersion(t *testing.T) {
	t.Parallel()
	for _, sub := range []string{"", "add", "remove", "allow", "drain", "undrain", "cordon", "uncordon", "weight", "wait", "history", "list", "get", "watch", "status", "top", "export", "auth", "doctor"} {
		code, out, errs := execute(t.Context(), nil, strings.Fields(sub+" --help")...)
		if code != 0 || errs != "" || !strings.Contains(out, "Examples:\n  pdctl "+sub) || !strings.Contains(out, "--etcd-endpoints") {
			t.Errorf("pdctl %s --help: exit %d %s\n%s", sub, code, errs, out)
		}
	}
	code, out, _ := execute(t.Context(), nil, "--version")
	assert.True(t, code == 0 && strings.HasPrefix(out, "pdctl 0."), "--version: exit %d %q", code, out)
}

func TestDoesNotLinkTheEtcdServer(t *testing.T) {
	t.Parallel()
	out, err := exec.CommandContext(t.Context(), "go", "list", "-deps", "github.com/pdmesh/pdmesh/cmd/pdctl").CombinedOutput()
	require.NoError(t, err, string(out))
	assert.NotContains(t, string(out), "go.etcd.io/etcd/server")
	assert.Contains(t, string(out), "go.etcd.io/etcd/client/v3")
}

// A member that accepts calls without answering, such as a partitioned
// one, does not fail a command while another member answers.
func TestSilentMember(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	silent := grpc.NewServer(grpc.UnknownServiceHandler(func(_ any, call grpc.ServerStream) error {
		<-call.Context().Done()
		return call.Context().Err()
	}))
	go func() { _ = silent.Serve(listener) }() // ends with Stop
	t.Cleanup(silent.Stop)
	var all sync.WaitGroup
	for range 8 { // the first member is chosen at random
		all.Go(func() {
			r.want(0, "", "list", "-o", "name", "--etcd-endpoints", listener.Addr().String()+","+r.etcd.Endpoint())
		})
	}
	all.Wait()
}
