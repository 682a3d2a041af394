package config_test

import (
	"bytes"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/pflag"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pdmesh/pdmesh/internal/cli/settings"
	"github.com/pdmesh/pdmesh/internal/proxy/config"
	"github.com/pdmesh/pdmesh/internal/sched/admission"
	"github.com/pdmesh/pdmesh/sim/testkit"
	"github.com/pdmesh/pdmesh/sim/testkit/leak"
)

func TestMain(m *testing.M) { leak.Main(m) }

// load parses and loads settings as a program does, with env as
// the environment; HOME is set unless env has it.
func load(t *testing.T, env map[string]string, args ...string) (config.Proxy, error) {
	t.Helper()
	fs := pflag.NewFlagSet("proxy", pflag.ContinueOnError)
	config.RegisterProxyFlags(fs)
	require.NoError(t, fs.Parse(config.NormalizeArgs(args)), "parse %q", args)
	return config.LoadProxy(fs, func(name string) (string, bool) {
		if v, ok := env[name]; ok {
			return v, true
		}
		if name == "HOME" {
			return "/home/someone", true
		}
		return "", false
	})
}

func mustLoad(t *testing.T, env map[string]string, args ...string) config.Proxy {
	t.Helper()
	p, err := load(t, env, args...)
	require.NoError(t, err)
	return p
}

func writeFile(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "pd.yaml")
	require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
	return path
}

func TestDefaults(t *testing.T) {
	t.Parallel()
	p := mustLoad(t, nil)
	assert.True(t, p.Embedded(), "without endpoints etcd must be embedded")
	want := config.Proxy{
		Clients:      config.Clients{Host: "127.0.0.1", Port: 8000, Connector: "plain"},
		Etcd:         config.Etcd{EtcdPrefix: "/pd"},
		EmbeddedEtcd: config.EmbeddedEtcd{EtcdListen: "127.0.0.1:2379", EtcdDataDir: "/home/someone/.local/state/pdmesh/etcd-2379", EtcdGateway: true},
		Membership:   config.Membership{StateDir: "/home/someone/.local/state/pdmesh/proxy-8000", AuditInterval: 15 * time.Second, OrphanGrace: time.Minute, WaitingRetryInterval: 2 * time.Second},
		Access:       config.Access{InstanceAllow: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8"), netip.MustParsePrefix("::1/128")}, Dashboard: true},
		Origins:      config.Origins{AllowedMethods: settings.JSONList{"*"}, AllowedHeaders: settings.JSONList{"*"}},
		Requests: config.Requests{
			Upstream: "own", ConnectTimeout: time.Second, PrefillTimeout: 300 * time.Second, DecodeFirstByteTimeout: time.Minute, IdleTimeout: 2 * time.Minute, BusyTimeout: 30 * time.Minute, NonStreamTimeout: time.Hour,
			MaxAttempts: 4, RetryBudget: 20, Fallback: "decode", MaxBodyBytes: 32 << 20, ShutdownTimeout: 30 * time.Second,
		},
		KVTransfer: config.KVTransfer{KVLeaseBudget: 20 * time.Second, VersionGroups: true, LMCacheNotifyTimeout: 30 * time.Second},
		Health:     config.Health{MaxFailures: 3, EjectionTime: time.Second, SlowStart: 10 * time.Second, SilenceLimit: 1250 * time.Millisecond, ProbeTimeout: 5 * time.Second},
		Choice: config.Choice{
			Disaggregate: "always", PrefillPolicy: "prefix", DecodePolicy: "round_robin", CacheWeight: 10, IndexMemory: 512 << 20,
			LoadDigests: true, LoadInterval: time.Second, ScrapeInterval: 5 * time.Second,
		},
		Admission: config.Admission{Queue: string(admission.Observe), QueueLength: 5000, TPOTTarget: 50 * time.Millisecond},
		Roles:     config.Roles{AutoRoles: config.AutoRolesOff, TTFTTarget: 2 * time.Second},
		Records:   config.Records{AccessLog: true, MetricsModels: 100, LogLevel: "info", LogFormat: "text"},
	}
	assert.Empty(t, cmp.Diff(want, p, ignoreSources, cmp.Comparer(func(a, b netip.Prefix) bool { return a == b })))
}

// Lists of names may be written as for vLLM, like other lists, or as in YAML.
func TestJSONLists(t *testing.T) {
	t.Parallel()
	file := writeFile(t, "allowed-origins: [https://a.example, https://b.example:8443]\n")
	for _, tt := range []struct {
		env  map[string]string
		args []string
		want settings.JSONList
	}{
		{nil, nil, nil},
		{nil, []string{"--allowed-origins", `["*"]`}, settings.JSONList{"*"}},
		{nil, []string{"--allowed-origins=*"}, settings.JSONList{"*"}},
		{nil, []string{"--allowed-origins", `[]`}, settings.JSONList{}},
		{nil, []string{"--allowed-origins", ` [ "https://a.example" , "null" ] `}, settings.JSONList{"https://a.example", "null"}},
		{nil, []string{"--allowed-origins", `["https://a.example"]`, "--allowed-origins", `["https://b.example"]`}, settings.JSONList{"https://b.example"}},
		{map[string]string{"PD_ALLOWED_ORIGINS": "https://a.example, https://b.example:8443"}, nil, settings.JSONList{"https://a.example", "https://b.example:8443"}},
		{nil, []string{"--config", file}, settings.JSONList{"https://a.example", "https://b.example:8443"}},
	} {
		diff := cmp.Diff(tt.want, mustLoad(t, tt.env, tt.args...).AllowedOrigins)
		assert.Equal(t, "", diff, "%v %q (-want +got):\n%s", tt.env, tt.args, diff)
	}
}

var ignoreSources = cmp.FilterPath(func(p cmp.Path) bool { return p.String() == "sources" }, cmp.Ignore())

// The policy of one role takes precedence over that of both roles, whatever their sources.
func TestPolicies(t *testing.T) {
	t.Parallel()
	file := writeFile(t, "policy: random\ndecode-policy: session\n")
	for _, tt := range []struct {
		env             map[string]string
		args            string
		prefill, decode string
	}{
		{nil, "", "prefix", "round_robin"},
		{nil, "--policy least_loaded", "least_loaded", "least_loaded"},
		{nil, "--policy least_loaded --decode-policy random", "least_loaded", "random"},
		{map[string]string{"PD_PREFILL_POLICY": "session"}, "--policy power_of_two", "session", "power_of_two"},
		{nil, "--config " + file, "random", "session"},
		{map[string]string{"PD_POLICY": "least_loaded"}, "--config " + file, "least_loaded", "session"},
	} {
		p := mustLoad(t, tt.env, strings.Fields(tt.args)...)
		assert.Equal(t, tt.prefill, p.PrefillPolicy, "%v %s: and", tt.env, tt.args)
		assert.Equal(t, tt.decode, p.DecodePolicy, "%v %s: and", tt.env, tt.args)
		var out bytes.Buffer
		require.NoError(t, p.Print(&out))
		if !strings.Contains(out.String(), "\nprefill-policy: "+tt.prefill) || !strings.Contains(out.String(), "\ndecode-policy: "+tt.decode) {
			t.Errorf("%s: printed\n%s", tt.args, out.String())
		}
	}
}

func TestOtherEnvironmentNames(t *testing.T) {
	t.Parallel()
	p := mustLoad(t, map[string]string{"ADMIN_API_KEY": "admin", "OPENAI_API_KEY": "engine"})
	assert.Equal(t, "admin", p.AdminAPIKey)
	assert.Equal(t, "engine", p.EngineAPIKey)
	p = mustLoad(t, map[string]string{"ADMIN_API_KEY": "old", "PD_ADMIN_API_KEY": "new"})
	assert.Equal(t, "new", p.AdminAPIKey, "admin: PD_ADMIN_API_KEY must win")
}

func TestStateDirectory(t *testing.T) {
	t.Parallel()
	p := mustLoad(t, map[string]string{"XDG_STATE_HOME": "/var/state"}, "--etcd-listen", "localhost:4000")
	assert.Equal(t, "/var/state/pdmesh/etcd-4000", p.EtcdDataDir)
	assert.Equal(t, "127.0.0.1:4000", p.EtcdListen)
	p = mustLoad(t, map[string]string{"XDG_STATE_HOME": "relative"})
	assert.Equal(t, "/home/someone/.local/state/pdmesh/etcd-2379", p.EtcdDataDir,
		"data dir: a relative XDG_STATE_HOME must be passed over")
	_, err := load(t, map[string]string{"HOME": ""})
	assert.ErrorContains(t, err, "--etcd-data-dir")
	p = mustLoad(t, map[string]string{"HOME": ""}, "--etcd-endpoints", "127.0.0.1:1")
	assert.Equal(t, "", p.EtcdDataDir, "data dir with an etcd elsewhere")
	assert.Equal(t, "", p.StateDir, "state dir without a home")
	for _, c := range []struct {
		want string
		args []string
	}{
		{"/var/state/pdmesh/proxy-8123", []string{"--port", "8123"}},
		{"", []string{"--port", "0"}}, // the next process would find the state of this one
		{"/here", []string{"--port", "0", "--state-dir", "/here"}},
		{"", []string{"--state-dir", ""}},
	} {
		assert.Equal(t, c.want, mustLoad(t, map[string]string{"XDG_STATE_HOME": "/var/state"}, c.args...).StateDir,
			"%v: state dir", c.args)
	}
}

func TestInstanceAllow(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name string
		args []string
		want string
	}{
		{"loopback by default", nil, "127.0.0.0/8 ::1/128"},
		{"and what the command line names", []string{"-p", "10.0.0.1:80", "10.0.0.1:81", "-d", "[2001:db8::1]:80", "some-host:80"}, "127.0.0.0/8 ::1/128 10.0.0.1/32 2001:db8::1/128"},
		{"loopback etcd elsewhere", []string{"--etcd-endpoints", "localhost:2379,[::1]:2379"}, "127.0.0.0/8 ::1/128"},
		{"as set", []string{"--instance-allow", "10.0.0.0/8,192.0.2.7"}, "10.0.0.0/8 192.0.2.7/32"},
		{"any", []string{"--instance-allow", "any", "--etcd-endpoints", "etcd:2379"}, "0.0.0.0/0 ::/0"},
		{"etcd with users", []string{"--etcd-endpoints", "etcd:2379", "--etcd-username", "u", "--etcd-password", "p"}, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			p := mustLoad(t, nil, tt.args...)
			var got []string
			for _, n := range p.InstanceAllow {
				got = append(got, n.String())
			}
			assert.Equal(t, tt.want, strings.Join(got, " "))
		})
	}
}

func TestNormalizeArgs(t *testing.T) {
	t.Parallel()
	tests := []struct{ name, in, want string }{
		{"lists by space", "--prefill a:1 b:2 --decode c:3 d:4 --port 9", "--prefill=a:1 --prefill=b:2 --decode=c:3 --decode=d:4 --port 9"},
		{"short", "-p a:1 b:2 -d c:3 -m M", "--prefill=a:1 --prefill=b:2 --decode=c:3 -m M"},
		{"joined and more", "--prefill=a:1 b:2", "--prefill=a:1 --prefill=b:2"},
		{"repeated", "--prefill a:1 --prefill b:2", "--prefill=a:1 --prefill=b:2"},
		{"no value keeps the next flag", "--prefill --decode c:3", "--prefill= --decode=c:3"},
		{"no value at the end", "-d", "--decode="},
		{"a value that looks like a flag", "--model -p --port 1", "--model -p --port 1"},
		{"switch with a word", "--etcd-gateway off --access-log", "--etcd-gateway=off --access-log"},
		{"switch alone before a flag", "--trace-headers --port 1", "--trace-headers --port 1"},
		{"after two dashes", "-- --prefill a b", "-- --prefill a b"},
		{"unknown", "--what a b", "--what a b"},
		{"nothing", "", ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			in := strings.Fields(tt.in)
			before := slices.Clone(in)
			assert.Equal(t, tt.want, strings.Join(config.NormalizeArgs(in), " "))
			assert.Equal(t, before, in, "the input was changed")
		})
	}
}

func TestReferenceCommandLine(t *testing.T) {
	t.Parallel()
	p := mustLoad(t, nil, strings.Fields("--model m --prefill localhost:8001 127.0.0.1:8001 10.0.0.2:8002 --decode 127.0.0.1:8005,127.0.0.1:8006 --port 9000 --trace-headers")...)
	assert.Equal(t, []string{"127.0.0.1:8001", "10.0.0.2:8002"}, p.Prefill,
		"prefill: want canonical addresses without duplicates")
	assert.Equal(t, []string{"127.0.0.1:8005", "127.0.0.1:8006"}, p.Decode)
	assert.True(t, p.Model == "m" && p.Port == 9000 && p.TraceHeaders,
		"model %q, port %d, trace headers %v", p.Model, p.Port, p.TraceHeaders)
}

func TestPrintMasksAndReadsBack(t *testing.T) {
	t.Parallel()
	secrets := []string{"client-secret-1", "client-secret-2", "engine-secret", "admin-secret", "etcd-secret"}
	args := []string{
		"--etcd-endpoints", "10.1.1.1:2379", "--etcd-username", "root", "--instance-allow", "10.0.0.0/8",
		"--api-key", "client-secret-1", "client-secret-2", "--engine-api-key", "engine-secret", "--admin-api-key", "admin-secret",
		"--model", "org/name: x # y", "--prefill", "10.0.0.1:80", "[2001:db8::1]:80", "--instance-allow", "2001:db8::/32", "--max-body-bytes", "1500", "--etcd-gateway=off",
	}
	p := mustLoad(t, map[string]string{"PD_ETCD_PASSWORD": "etcd-secret"}, args...)
	var out bytes.Buffer
	require.NoError(t, p.Print(&out))
	for _, s := range secrets {
		assert.NotContains(t, out.String(), s)
	}
	testkit.Contains(t, out.String(), "# environment PD_ETCD_PASSWORD", "# flag --model")
	for _, key := range []string{"api-key: [********, ********]", "admin-api-key: ********"} {
		assert.Contains(t, strings.ReplaceAll(out.String(), `"`, ""), key,
			"no %q in:\n%s", key, out.String())
	}
	// With the secrets set again, the printed settings load as the same values.
	text := dropLines(out.String(), "api-key", "etcd-listen", "etcd-data-dir")
	q := mustLoad(t, map[string]string{"PD_ETCD_PASSWORD": "etcd-secret"}, "--config", writeFile(t, text),
		"--api-key", "client-secret-1,client-secret-2", "--engine-api-key", "engine-secret", "--admin-api-key", "admin-secret")
	q.ConfigFile = ""
	diff := cmp.Diff(p, q, ignoreSources, cmp.Comparer(func(a, b netip.Prefix) bool { return a == b }))
	assert.Equal(t, "", diff, "read back (-printed +read):\n%s\n%s", diff, out.String())
}

// Printed settings load also with TLS at the embedded etcd; settings that a file cannot have are named.
func TestPrintReadsBack_Others(t *testing.T) {
	t.Parallel()
	p := mustLoad(t, nil, "--etcd-listen-cert", "c", "--etcd-listen-key", "k", "--etcd-ca", "ca")
	var out bytes.Buffer
	require.NoError(t, p.Print(&out))
	mustLoad(t, nil, "--config", writeFile(t, out.String()))
	p = mustLoad(t, nil, strings.Fields("--prefiller-port 7100 --decoder-port 7200 --decoder-init-port 7300 --decoder-alloc-port 7400 --etcd-endpoints 127.0.0.1:1")...)
	out.Reset()
	require.NoError(t, p.Print(&out))
	require.Contains(t, out.String(), "# a file cannot have the LMCache ports")
}

func dropLines(text string, words ...string) string {
	var keep []string
	for line := range strings.Lines(text) {
		if !slices.ContainsFunc(words, func(w string) bool { return strings.Contains(line, w) }) {
			keep = append(keep, line)
		}
	}
	return strings.Join(keep, "")
}

// --connector accepts the names of vLLM's classes, too.
func TestConnectorByClass(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]string{"NixlConnector": "nixl", "nixlpushconnector": "nixl_push", "MooncakeConnectorV1": "ascend", "LMCacheMPConnector": "plain"} {
		p, err := load(t, nil, "--connector", name)
		require.NoError(t, err, name)
		assert.Equal(t, want, p.Connector, name)
	}
	_, err := load(t, nil, "--connector", "P2pNcclConnector")
	assert.ErrorContains(t, err, "docs/connectors/refused.md")
}
