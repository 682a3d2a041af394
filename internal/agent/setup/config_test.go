package setup

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/spf13/pflag"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pdmesh/pdmesh/internal/agent"
	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/sim/testkit"
	"github.com/pdmesh/pdmesh/sim/testkit/leak"
)

func loadArgs(t *testing.T, env map[string]string, args ...string) (Config, error) {
	t.Helper()
	fs := pflag.NewFlagSet("agent", pflag.ContinueOnError)
	Settings().Register(fs)
	if err := fs.Parse(args); err != nil {
		return Config{}, err
	}
	var command []string
	if fs.ArgsLenAtDash() >= 0 {
		command = fs.Args()
	}
	return Load(fs, func(name string) (string, bool) { v, ok := env[name]; return v, ok }, command)
}

func mustLoad(t *testing.T, env map[string]string, args ...string) Config {
	t.Helper()
	c, err := loadArgs(t, env, args...)
	require.NoError(t, err)
	t.Cleanup(c.Side.Release)
	return c
}

func TestLoadDefaults(t *testing.T) {
	t.Parallel()
	got := mustLoad(t, nil, "--role", "prefill", "--address", "localhost:8100", "--host-id", "h")
	want := Config{
		Options: agent.Options{
			Key:           instance.Key{Role: instance.Prefill, Address: "127.0.0.1:8100"},
			ProbeInterval: 2 * time.Second, ProbeTimeout: 5 * time.Second, SlowAfter: 15 * time.Second, DrainTimeout: 2 * time.Minute, KVLease: 30 * time.Second,
		},
		Engine: "http://127.0.0.1:8100", HostID: "h",
		EtcdEndpoints: []string{"127.0.0.1:2379"}, EtcdPrefix: "/pd",
		TTL:      15 * time.Second,
		LogLevel: "info", LogFormat: "text",
		RestartDelay: time.Second, RestartDelayMax: time.Minute, StopTimeout: 30 * time.Second,
	}
	d := cmp.Diff(want, got, cmp.AllowUnexported(Config{}, sideChannel{}, Secured{}, kvEvents{}, claim{}),
		cmpopts.IgnoreFields(Config{}, "values"))
	assert.Equal(t, "", d, d)
}

func TestLoadSources(t *testing.T) {
	t.Parallel()
	env := map[string]string{
		"PD_ROLE": "decode", "PD_ADDRESS": "10.0.0.7:8200", "PD_ETCD_ENDPOINTS": "http://10.0.0.1:2379/, 10.0.0.2:2379,10.0.0.1:2379",
		"PD_ETCD_USERNAME": "u", "PD_ETCD_PASSWORD": "007", "PD_TTL": "20s", "PD_STRICT_MODEL": "true", "PD_LABEL": "zone=a,rack=1",
		"PD_KV_LEASE": "0s", "PD_MODEL": "", "OPENAI_API_KEY": "from-openai",
	}
	got := mustLoad(t, env, "--role", "prefill", "--label", "zone=b,c", "--label", "empty=", "--host-id=h", "--engine=https://127.0.0.1:1/base")
	want := Config{
		Options: agent.Options{
			Key: instance.Key{Role: instance.Prefill, Address: "10.0.0.7:8200"}, StrictModel: true,
			ProbeInterval: 2 * time.Second, ProbeTimeout: 5 * time.Second, SlowAfter: 15 * time.Second, DrainTimeout: 2 * time.Minute, KVLease: -1,
		},
		Engine: "https://127.0.0.1:1/base", HostID: "h", EngineAPIKey: "from-openai",
		labels:        map[string]string{"zone": "b,c", "empty": ""},
		EtcdEndpoints: []string{"10.0.0.1:2379", "10.0.0.2:2379"}, EtcdPrefix: "/pd", EtcdUsername: "u", EtcdPassword: "007",
		TTL:      20 * time.Second,
		LogLevel: "info", LogFormat: "text",
		RestartDelay: time.Second, RestartDelayMax: time.Minute, StopTimeout: 30 * time.Second,
	}
	d := cmp.Diff(want, got, cmp.AllowUnexported(Config{}, sideChannel{}, Secured{}, kvEvents{}, claim{}),
		cmpopts.IgnoreFields(Config{}, "values"))
	assert.Equal(t, "", d, d)
	env["PD_ENGINE_API_KEY"] = "ours"
	delete(env, "PD_ROLE")
	got, err := loadArgs(t, env, "--role", "prefill")
	assert.True(t, err == nil && got.EngineAPIKey == "ours" && len(got.HostID) == 16, "%+v, %v", got, err)
	assert.Empty(t, cmp.Diff(map[string]string{"zone": "a", "rack": "1"}, got.labels))
}

func TestLoadRefuses(t *testing.T) {
	t.Parallel()
	good := []string{"--role", "prefill", "--address", "10.0.0.7:8100", "--etcd-endpoints", "10.0.0.1:2379"}
	for _, tc := range []struct {
		name string
		env  map[string]string
		args []string
		want []string
	}{
		{"nothing", nil, nil, []string{"--role: is missing", "PD_ROLE", "--address: is missing"}},
		{"role", nil, append(good[:6:6], "--role", "all"), []string{`--role: unknown role "all": use "prefill", "decode" or "both"`}},
		{"role from environment", map[string]string{"PD_ROLE": "x"}, good[2:], []string{"--role (from environment PD_ROLE):"}},
		{"wildcard", nil, append(good[:6:6], "--address", "0.0.0.0:8100"), []string{"--address: ", "wildcard"}},
		{"IPv6", nil, append(good[:6:6], "--address", "fd00::1:8100"), []string{"write IPv6 as [address]:port"}},
		{"port", nil, append(good[:6:6], "--address", "h:99999"), []string{"the port must be a number from 1 to 65535"}},
		{"loopback with etcd elsewhere", nil, append(good[:6:6], "--address", "127.0.0.1:8100"), []string{"--address: 127.0.0.1:8100 is a loopback address", "--allow-loopback"}},
		{"ttl below the floor", nil, append(good[:6:6], "--ttl", "4s"), []string{"--ttl: 4s: must be between 5s and 10m0s"}},
		{"ttl not whole", nil, append(good[:6:6], "--ttl", "5500ms"), []string{"etcd counts whole seconds"}},
		{"ttl from environment", map[string]string{"PD_TTL": "soon"}, good, []string{`--ttl (from environment PD_TTL): bad value "soon": must be a duration`}},
		{"probe interval", nil, append(good[:6:6], "--probe-interval", "1ms"), []string{"--probe-interval: 1ms: must be between 50ms"}},
		{"kv lease", nil, append(good[:6:6], "--kv-lease", "-1s"), []string{"--kv-lease: -1s: must be between 0s"}},
		{"drain timeout", nil, append(good[:6:6], "--drain-timeout", "0s"), []string{"--drain-timeout: 0s: must be between 1ms"}},
		{"shutdown delay", nil, append(good[:6:6], "--shutdown-delay", "61m"), []string{"--shutdown-delay: 1h1m0s: must be between 0s and 1h"}},
		{"engine", nil, append(good[:6:6], "--engine", "127.0.0.1:8100"), []string{"--engine: invalid engine URL", "write http://host:port"}},
		{"engine with credentials", nil, append(good[:6:6], "--engine", "http://u:topsecret@h:1"), []string{"--engine-api-key"}},
		{"no endpoints", nil, append(good[:4:4], "--etcd-endpoints", ","), []string{"--etcd-endpoints: bad value: an item of the list is empty"}},
		{"endpoint", nil, append(good[:6:6], "--etcd-endpoints", "10.0.0.1"), []string{"--etcd-endpoints: invalid"}},
		{"etcd by TLS and without", nil, append(good[:6:6], "--etcd-endpoints", "https://h:1,http://i:1"), []string{"reached in one way"}},
		{"a certificate without its key", nil, append(good[:6:6], "--engine-cert", "c.pem"), []string{"--engine-cert and --engine-key together"}},
		{"no password file", nil, append(good[:6:6], "--etcd-username", "u", "--etcd-password-file", "/nowhere/f"), []string{"--etcd-password-file: open /nowhere/f"}},
		{"password alone", nil, append(good[:6:6], "--etcd-password", "topsecret"), []string{"set --etcd-username and --etcd-password (or PD_ETCD_PASSWORD) together"}},
		{"user alone", nil, append(good[:6:6], "--etcd-username", "pd-agent"), []string{"set --etcd-username and --etcd-password (or PD_ETCD_PASSWORD) together"}},
		{"label", nil, append(good[:6:6], "--label", "zone"), []string{`--label: "zone": must be name=value`}},
		{"label with control characters", nil, append(good[:6:6], "--label", "a=\x1b"), []string{`u001b`}},
		{"long label", nil, append(good[:6:6], "--label", "a="+strings.Repeat("x", 200)), []string{"at most 128 bytes"}},
		{"key with newline", map[string]string{"OPENAI_API_KEY": "topsecret\n"}, good, []string{"--engine-api-key (from OPENAI_API_KEY)", "control character"}},
		{"bool", map[string]string{"PD_STRICT_MODEL": "perhaps"}, good, []string{`--strict-model (from environment PD_STRICT_MODEL): bad value "perhaps": use on or off`}},
		{"all at once", map[string]string{"PD_TTL": "x"}, []string{"--role=x", "--address=y"}, []string{"--role", "--address", "--ttl"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			c, err := loadArgs(t, tc.env, tc.args...)
			require.Error(t, err, "accepted: %+v", c)
			testkit.Contains(t, fmt.Sprint(err), tc.want...)
			assert.NotContains(t, err.Error(), "topsecret")
			assert.NotContains(t, err.Error(), "\x1b")
		})
	}
	_, err := loadArgs(t, nil,
		append(good[:6:6], "--address", "127.0.0.1:8100", "--allow-loopback", "--ttl", "2s", "--allow-short-ttl")...)
	assert.NoError(t, err, "allowed by flag")
	_, err = loadArgs(t, map[string]string{"PD_LABEL": many(40)}, good...)
	assert.ErrorContains(t, err, "at most 32 labels")
}

func many(n int) string {
	var parts []string
	for i := range n {
		parts = append(parts, "l"+string(rune('a'+i/26))+string(rune('a'+i%26))+"=v")
	}
	return strings.Join(parts, ",")
}

// A drain of prefill waits for the lease in the command, unless --kv-lease is set.
func TestLeaseOfTheCommand(t *testing.T) {
	t.Parallel()
	command := []string{
		"--role", "prefill", "--address", "10.0.0.7:8000", "--etcd-endpoints", "10.0.0.1:2379", "--", "vllm", "serve", "M", "--host", "10.0.0.7",
		"--kv-transfer-config", `{"kv_connector":"NixlConnector","kv_role":"kv_producer","kv_connector_extra_config":{"kv_lease_duration":120}}`,
	}
	assert.Equal(t, 2*time.Minute, mustLoad(t, nil, command...).KVLease, "from the command")
	assert.Equal(t, 50*time.Second, mustLoad(t, nil, append([]string{"--kv-lease", "50s"}, command...)...).KVLease,
		"from the flag")
}

func TestMain(m *testing.M) { leak.Main(m) }

const patience = time.Minute
