package config_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/pflag"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pdmesh/pdmesh/internal/proxy/config"
	"github.com/pdmesh/pdmesh/sim/testkit"
)

// TestBadValues has every kind of bad value once; the error must name the flag and the remedy.
func TestBadValues(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name string
		args string
		want []string
	}{
		{"port is a word", "--port http", []string{"--port:", "whole number"}},
		{"port too large", "--port 65536", []string{"--port:", "1 to 65535"}},
		{"port negative", "--port=-1", []string{"--port:", "1 to 65535"}},
		{"host with port", "--host 127.0.0.1:8000", []string{"--host:", "without a port"}},
		{"host in brackets", "--host [::1]", []string{"--host:"}},
		{"host empty", "--host=", []string{"--host:"}},
		{"host odd IPv4", "--host 127.1", []string{"--host:"}},
		{"connector", "--connector teleport", []string{"--connector:", "known are plain, nixl"}},
		{"origin with a slash", `--allowed-origins ["https://a.example/"]`, []string{"--allowed-origins:", "without a path"}},
		{"origin without a scheme", "--allowed-origins a.example", []string{"--allowed-origins:", "https://host"}},
		{"origins that are no list", `--allowed-origins ["*"`, []string{"--allowed-origins:", `["*"]`}},
		{"origins of numbers", "--allowed-origins [1]", []string{"--allowed-origins:", `["*"]`, "the value: number in place of a string"}},
		{"origin empty", `--allowed-origins ["*",""]`, []string{"--allowed-origins:", "empty"}},
		{"header of two lines", `--allowed-headers ["a\r\nb"]`, []string{"--allowed-headers:", "invalid name"}},
		{"upstream", "--upstream grpc", []string{"--upstream:", "own or std"}},
		{"shutdown delay negative", "--shutdown-delay=-1s", []string{"--shutdown-delay:", "0s to 1h"}},
		{"shutdown delay too long", "--shutdown-delay 61m", []string{"--shutdown-delay:", "0s to 1h"}},
		{"queue", "--queue maybe", []string{"--queue:", "off, observe or on"}},
		{"queue length", "--queue-length 0", []string{"--queue-length:", "1 to 100000"}},
		{"time per token", "--tpot-target 11s", []string{"--tpot-target:", "1ms to 10s"}},
		{"disaggregate", "--disaggregate maybe", []string{"--disaggregate:", "always, auto or never"}},
		{"fallback", "--fallback maybe", []string{"--fallback:", "decode or none"}},
		{"policy", "--policy best", []string{"--policy: \"best\": no such policy; use round_robin, random, least_loaded"}},
		{"policies of the roles", "--prefill-policy p2c --decode-policy lru", []string{"--prefill-policy: \"p2c\"", "--decode-policy: \"lru\"", "power_of_two"}},
		{"policy of both, once", "--policy=a --decode-policy=b", []string{"--policy: \"a\"", "--decode-policy: \"b\""}},
		{"index memory tiny", "--index-memory 1000", []string{"--index-memory: 1000 is out of range; use 1MiB to 1TiB"}},
		{"index memory huge", "--index-memory 2048GiB", []string{"--index-memory:", "1MiB to 1TiB"}},
		{"cache weight", "--cache-weight 0", []string{"--cache-weight: must be 1 or more"}},
		{"collector without a scheme", "--otlp-endpoint 127.0.0.1:4318", []string{"--otlp-endpoint:", "http://127.0.0.1:4318"}},
		{"collector by another scheme", "--otlp-endpoint grpc://127.0.0.1:4317", []string{"--otlp-endpoint:", "http://"}},
		{"traces in per cent", "--trace-sample 5", []string{"--trace-sample:", "from 0 to 1"}},
		{"trace share that is not a number", "--trace-sample all", []string{"--trace-sample:", "from 0 to 1"}},
		{"traces, no number", "--trace-sample NaN", []string{"--trace-sample:", "from 0 to 1"}},
		{"models in metrics", "--metrics-models 10001", []string{"--metrics-models: 10001 is out of range; use 0 to 10000"}},
		{"models in metrics, negative", "--metrics-models=-1", []string{"--metrics-models:", "0 to 10000"}},
		{"log level", "--log-level loud", []string{"--log-level:", "error, warn, info"}},
		{"log format", "--log-format xml", []string{"--log-format:", "text or json"}},
		{"digests that are old before the next", "--load-interval 4s", []string{"--load-interval:", "20ms to 3s"}},
		{"switch", "--etcd-gateway=maybe", []string{"--etcd-gateway:", "on or off"}},
		{"prefill without port", "--prefill 10.0.0.1", []string{"--prefill:", "host:port"}},
		{"prefill URL", "--prefill http://10.0.0.1:80", []string{"--prefill:", "without a scheme"}},
		{"prefill wildcard", "--prefill 0.0.0.0:8100", []string{"--prefill:", "wildcard"}},
		{"prefill nothing", "--prefill --port 1", []string{"--prefill:", "separate items by commas"}},
		{"decode IPv6 bare", "--decode fe80::1:8000", []string{"--decode:", "[address]:port"}},
		{"decode empty item", "--decode 10.0.0.1:80,,10.0.0.2:80", []string{"--decode:", "empty"}},
		{"outside the networks", "--decode 10.0.0.1:80 --instance-allow 192.0.2.0/24", []string{"--decode:", "--instance-allow"}},
		{"network word", "--instance-allow lan", []string{"--instance-allow:", "10.0.0.0/8"}},
		{"network host bits", "--instance-allow 10.1.2.3/8", []string{"--instance-allow:", "write 10.0.0.0/8"}},
		{"etcd listen not loopback", "--etcd-listen 0.0.0.0:2379", []string{"--etcd-listen:", "not a loopback address", "--etcd-endpoints", "TLS and users", "docs/tls.md"}},
		{"etcd listen on a network", "--etcd-listen 10.0.0.1:2379", []string{"--etcd-listen:", "loopback", "--etcd-endpoints"}},
		{"etcd listen name", "--etcd-listen some-host:2379", []string{"--etcd-listen:", "loopback"}},
		{"etcd listen port", "--etcd-listen 127.0.0.1:0", []string{"--etcd-listen:", "1 to 65535"}},
		{"etcd both ways", "--etcd-listen 127.0.0.1:2379 --etcd-endpoints 127.0.0.1:2379", []string{"--etcd-listen:", "--etcd-endpoints", "one of the two"}},
		{"etcd data dir with endpoints", "--etcd-data-dir /x --etcd-endpoints 127.0.0.1:2379", []string{"--etcd-data-dir:", "one of the two"}},
		{"etcd endpoint", "--etcd-endpoints 127.0.0.1", []string{"--etcd-endpoints: invalid etcd endpoint \"127.0.0.1\": must be host:port"}},
		{"etcd endpoints of two kinds", "--etcd-endpoints https://10.0.0.1:2379,http://10.0.0.2:2379 --instance-allow any", []string{"--etcd-endpoints", "http://", "https://", "one way"}},
		{"etcd endpoint of another kind", "--etcd-endpoints ftp://10.0.0.1:2379 --instance-allow any", []string{"--etcd-endpoints", "write host:port or https://host:port"}},
		{"certificate alone", "--tls-cert a.pem", []string{"--tls-cert", "--tls-key"}},
		{"key alone", "--tls-key a.pem", []string{"--tls-key", "--tls-cert"}},
		{"engine certificate alone", "--engine-cert a.pem", []string{"--engine-cert", "--engine-key"}},
		{"etcd key alone", "--etcd-endpoints 127.0.0.1:1 --etcd-key a.pem", []string{"--etcd-key", "--etcd-cert"}},
		{"client authority without TLS", "--tls-client-ca a.pem", []string{"--tls-client-ca", "--tls-cert"}},
		{"TLS to the embedded etcd", "--etcd-ca a.pem", []string{"--etcd-ca", "--etcd-endpoints"}},
		{"server name with a port", "--engine-server-name a:1", []string{"--engine-server-name", "invalid name"}},
		{"embedded etcd beyond loopback without users", "--etcd-listen 10.0.0.1:2379 --etcd-listen-cert c --etcd-listen-key k --etcd-ca ca",
			[]string{"--etcd-username:", "10.0.0.1:2379", "pdctl auth init", "docs/tls.md"}},
		{"embedded etcd beyond loopback without TLS", "--etcd-listen 10.0.0.1:2379 --etcd-username u --etcd-password p", []string{"--etcd-listen:", "--etcd-listen-cert"}},
		{"embedded etcd with TLS everywhere", "--etcd-listen 0.0.0.0:2379 --etcd-listen-cert c --etcd-listen-key k --etcd-ca ca --etcd-username u --etcd-password p",
			[]string{"--etcd-listen:", "name the address"}},
		{"embedded etcd with TLS by name", "--etcd-listen some-host:2379 --etcd-listen-cert c --etcd-listen-key k --etcd-ca ca --etcd-username u --etcd-password p",
			[]string{"--etcd-listen:", "must be an IP address"}},
		{"embedded etcd with TLS and no key", "--etcd-listen-cert c --etcd-ca ca", []string{"--etcd-listen-cert:", "--etcd-listen-key"}},
		{"embedded etcd with TLS and no authority", "--etcd-listen-cert c --etcd-listen-key k", []string{"--etcd-ca:", "client of the embedded etcd"}},
		{"embedded etcd that asks for certificates", "--etcd-listen-cert c --etcd-listen-key k --etcd-ca ca --etcd-listen-client-ca ca", []string{"--etcd-cert:", "--etcd-key"}},
		{"embedded etcd that asks without TLS", "--etcd-listen-client-ca ca", []string{"--etcd-listen-client-ca:", "--etcd-listen-cert"}},
		{"embedded etcd with TLS and a gateway", "--etcd-listen-cert c --etcd-listen-key k --etcd-ca ca --etcd-gateway on", []string{"--etcd-gateway:", "--etcd-listen-cert"}},
		{"certificate of the embedded etcd for another", "--etcd-endpoints 127.0.0.1:2379 --etcd-listen-cert c --etcd-listen-key k", []string{"--etcd-listen-cert:", "--etcd-endpoints"}},
		{"two passwords", "--etcd-endpoints 127.0.0.1:1 --etcd-username u --etcd-password p --etcd-password-file f", []string{"--etcd-password-file", "one of the two"}},
		{"no password file", "--etcd-endpoints 127.0.0.1:1 --etcd-username u --etcd-password-file /nowhere/f", []string{"--etcd-password-file", "/nowhere/f"}},
		{"etcd open and remote", "--etcd-endpoints 10.0.0.1:2379,10.0.0.2:2379", []string{"--instance-allow:", "required", "10.0.0.1:2379,10.0.0.2:2379", "--instance-allow 10.0.0.0/8", "--etcd-username"}},
		{"etcd remote by name", "--etcd-endpoints etcd:2379", []string{"--instance-allow:", "required"}},
		{"etcd partly remote", "--etcd-endpoints 127.0.0.1:2379,10.0.0.2:2379", []string{"--instance-allow:", "required"}},
		{"user without password", "--etcd-endpoints 127.0.0.1:1 --etcd-username u", []string{"--etcd-username", "together"}},
		{"user of the embedded etcd without a password", "--etcd-username u", []string{"--etcd-username", "together"}},
		{"prefix root", "--etcd-prefix /", []string{"--etcd-prefix:", "/pd"}},
		{"prefix relative", "--etcd-prefix pd", []string{"--etcd-prefix:", "/pd"}},
		{"prefix double slash", "--etcd-prefix /pd//x", []string{"--etcd-prefix:"}},
		{"duration word", "--idle-timeout soon", []string{"--idle-timeout:", "30s"}},
		{"keep-alive short", "--sse-keep-alive-interval 50ms", []string{"--sse-keep-alive-interval:", "100ms to 1h"}},
		{"keep-alive long", "--sse-keep-alive-interval 2h", []string{"--sse-keep-alive-interval:", "100ms to 1h"}},
		{"keep-alive negative", "--sse-keep-alive-interval -1s", []string{"--sse-keep-alive-interval:", "100ms to 1h"}},
		{"duration zero", "--idle-timeout 0", []string{"--idle-timeout:", "1ms"}},
		{"duration negative", "--prefill-timeout=-5s", []string{"--prefill-timeout:", "1ms"}},
		{"duration huge", "--connect-timeout 1e300", []string{"--connect-timeout:"}},
		{"duration NaN", "--connect-timeout nan", []string{"--connect-timeout:"}},
		{"size word", "--max-body-bytes lots", []string{"--max-body-bytes:", "64MiB"}},
		{"size unit", "--max-body-bytes 5parsec", []string{"--max-body-bytes:", "64MiB"}},
		{"size overflow", "--max-body-bytes 9999999999999GiB", []string{"--max-body-bytes:"}},
		{"size tiny", "--max-body-bytes 1", []string{"--max-body-bytes:", "1KiB"}},
		{"memory tiny", "--max-bodies-memory 1000", []string{"--max-bodies-memory:", "1MiB"}},
		{"attempts", "--max-attempts 0", []string{"--max-attempts:", "1 (no retry)"}},
		{"waiting retries", "--max-waiting-retries=-1", []string{"--max-waiting-retries:"}},
		{"connections", "--max-connections=-1", []string{"--max-connections:", "descriptors"}},
		{"client key with a space", "--api-key=a\u00a0b", []string{"--api-key:", "visible ASCII"}},
		{"same key twice", "--api-key k --admin-api-key k", []string{"--admin-api-key:", "must differ"}},
		{"admin listen", "--admin-listen 9000", []string{"--admin-listen:", "host:port"}},
		{"admin listen port", "--admin-listen 127.0.0.1:http", []string{"--admin-listen:", "1 to 65535"}},
		{"admin listen taken", "--admin-listen 127.0.0.1:8000", []string{"--admin-listen:", "another port"}},
		{"profiles for everybody", "--pprof-listen 0.0.0.0:6060", []string{"--pprof-listen:", "loopback"}},
		{"profiles without a port", "--pprof-listen 127.0.0.1", []string{"--pprof-listen:", "host:port"}},
		{"two at once", "--port x --max-attempts y", []string{"--port:", "--max-attempts:"}},
		{"two at once, later", "--port 70000 --max-attempts 0", []string{"--port:", "--max-attempts:"}},
		{"model with an escape", "--model=a\x1b[2J", []string{"--model:"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			_, err := load(t, nil, strings.Split(tt.args, " ")...)
			refused(t, err, tt.want)
		})
	}
}

func TestGoodValues(t *testing.T) {
	t.Parallel()
	for _, args := range []string{
		"--port 0", "--host 0.0.0.0", "--host ::", "--host ::1", "--host localhost", "--host my-host.example",
		"--admin-listen 0.0.0.0:9000", "--etcd-prefix /pd/", "--etcd-prefix /team/a", "--log-level warning", "--log-format JSON",
		"--idle-timeout 2.5", "--sse-keep-alive-interval 0", "--sse-keep-alive-interval 15", "--max-body-bytes 8mb", "--fallback none", "--upstream std", "--connector nixl", "--max-attempts 1",
		"--policy random", "--prefill-policy session --decode-policy power_of_two",
		"--etcd-endpoints http://127.0.0.1:2379/", "--etcd-listen [::1]:2379", "--pprof-listen 127.0.0.1:6060",
		"--etcd-username u --etcd-password p", "--etcd-listen-cert c --etcd-listen-key k --etcd-ca ca",
		"--etcd-listen 10.0.0.1:2379 --etcd-listen-cert c --etcd-listen-key k --etcd-ca ca --etcd-username u --etcd-password p",
	} {
		_, err := load(t, nil, strings.Fields(args)...)
		assert.NoError(t, err, args)
	}
}

// An embedded etcd that other machines can reach does not restrict instances to loopback addresses.
func TestEmbeddedEtcdBeyondLoopback(t *testing.T) {
	t.Parallel()
	args := "--etcd-listen 10.0.0.1:2379 --etcd-listen-cert c --etcd-listen-key k --etcd-ca ca --etcd-username u --etcd-password p"
	p, err := load(t, nil, strings.Fields(args)...)
	assert.True(t, err == nil && p.Embedded() && !p.EtcdIsLoopback() && p.InstanceAllow == nil && p.EtcdTLS.Used(),
		"%+v, %v", p, err)
}

func TestError_NamesSource(t *testing.T) {
	t.Parallel()
	// A container platform may set this variable for a service that is called "pd".
	_, err := load(t, map[string]string{"PD_PORT": "tcp://10.0.0.1:80"})
	assert.ErrorContains(t, err, "--port (from environment PD_PORT)")
	path := writeFile(t, "port: 99999\n")
	_, err = load(t, nil, "--config", path)
	assert.ErrorContains(t, err, "--port (from file "+path+")")
}

func TestError_OmitsSecrets(t *testing.T) {
	t.Parallel()
	_, err := load(t, map[string]string{
		"PD_API_KEY": "s3cret-a\x01", "ADMIN_API_KEY": "s3cret b", "OPENAI_API_KEY": "s3cret\nc", "PD_ETCD_PASSWORD": "s3cret-d",
	})
	require.Error(t, err, "control characters in keys were taken")
	assert.NotContains(t, err.Error(), "s3cret")
}

func TestFile(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name, text string
		want       []string // parts of the error; none: no error
	}{
		{"empty", "", nil},
		{"comments only", "# nothing\n", nil},
		{"null is not set", "port:\n", nil},
		{"lists and scalars", "prefill: [127.0.0.1:1]\ndecode: 127.0.0.1:2\naccess-log: off\ntrace-headers: true\n", nil},
		{"anchors", "prefill: &p [127.0.0.1:1]\ndecode: *p\n", nil},
		{"anchor of an item", "prefill: [&p 127.0.0.1:1]\ndecode: [*p]\n", nil},
		{"digits stay text", "admin-api-key: 0123\n", nil},
		{"unknown key", "port: 1\netcd_endpoints: [127.0.0.1:1]\n", []string{"line 2", `unknown key "etcd_endpoints"`, `did you mean "etcd-endpoints"`}},
		{"mistyped key", "modle: x\n", []string{`unknown key "modle"`, `"model"`}},
		{"foreign key", "hello: x\n", []string{`unknown key "hello"`, "--help"}},
		{"nested key", "etcd:\n  endpoints: [127.0.0.1:1]\n", []string{`unknown key "etcd"`}},
		{"empty map under a foreign key", "foo: {}\n", []string{`unknown key "foo"`}},
		{"two unknown keys", "a1: 1\nb1: 2\n", []string{`"a1"`, `"b1"`}},
		{"config inside the config", "config: other.yaml\n", []string{`unknown key "config"`}},
		{"print-config inside", "print-config: on\n", []string{`unknown key "print-config"`}},
		{"twice", "port: 1\nport: 2\n", []string{"port", "twice"}},
		{"map as value", "port: {a: 1}\n", []string{"port", "plain value"}},
		{"list of lists", "prefill: [[127.0.0.1:1]]\n", []string{"prefill", "plain value"}},
		{"list for a number", "port: [1, 2]\n", []string{"--port", "one value"}},
		{"list of nothing", "prefill: [~, '']\n", []string{"--prefill", "empty"}},
		{"not a map", "- port\n", []string{"name: value"}},
		{"one document", "# x\n---\nport: 8001\n...\n# y\n", nil},
		{"documents without settings", "---\nport: 8001\n---\n# x\n---\n", nil},
		{"two documents", "port: 8001\n---\nconnector: mooncake\n", []string{"pd.yaml", "more than one YAML document"}},
		{"null and a document", "---\n---\nconnector: mooncake\n", []string{"more than one YAML document"}},
		{"document and one that is not YAML", "port: 8001\n---\nport: [\n", []string{"pd.yaml"}},
		{"not YAML", "port: [\n", []string{"pd.yaml"}},
		{"binary", "\x00\x01\x02", []string{"pd.yaml"}},
		{"escape in a key", "\"a\\e[2J\": 1\n", []string{"unknown key"}},
		{"huge", strings.Repeat("# x\n", 1<<19), []string{"larger than"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			_, err := load(t, nil, "--config", writeFile(t, tt.text))
			if len(tt.want) == 0 {
				require.NoError(t, err)
				return
			}
			refused(t, err, tt.want)
		})
	}
	t.Run("missing", func(t *testing.T) {
		t.Parallel()
		_, err := load(t, nil, "--config", filepath.Join(t.TempDir(), "none.yaml"))
		assert.ErrorIs(t, err, os.ErrNotExist, "error")
	})
	t.Run("a directory", func(t *testing.T) {
		t.Parallel()
		_, err := load(t, nil, "--config", t.TempDir())
		assert.Error(t, err, "taken")
	})
	t.Run("digits keep their zero", func(t *testing.T) {
		t.Parallel()
		assert.Equal(t, "0123", mustLoad(t, nil, "--config", writeFile(t, "admin-api-key: 0123\n")).AdminAPIKey,
			"admin key")
	})
}

func TestValidateByHand(t *testing.T) {
	t.Parallel()
	p := mustLoad(t, nil)
	require.NoError(t, p.Validate())
	p.Port = -1
	p.Prefill = []string{"nonsense"}
	testkit.Contains(t, fmt.Sprint(p.Validate()), "--port", "--prefill")
	var zero config.Proxy
	assert.Error(t, zero.Validate(), "the zero configuration was taken")
}

// refused fails unless err contains all words, and no control characters for a terminal.
func refused(t *testing.T, err error, words []string) {
	t.Helper()
	require.Error(t, err, "taken")
	testkit.Contains(t, fmt.Sprint(err), words...)
	assert.NotContains(t, err.Error(), "\x1b")
}

// The command line of a reference proxy works unchanged, and an error names the flag.
func ExampleLoadProxy() {
	args := strings.Fields("--prefill 127.0.0.1:8100 localhost:8101 --decode 127.0.0.1:8200 --port 80000")
	fs := pflag.NewFlagSet("proxy", pflag.ContinueOnError)
	config.RegisterProxyFlags(fs)
	if err := fs.Parse(config.NormalizeArgs(args)); err != nil {
		fmt.Println(err)
		return
	}
	environment := map[string]string{"HOME": "/home/someone", "PD_IDLE_TIMEOUT": "soon"}
	_, err := config.LoadProxy(fs, func(name string) (string, bool) {
		value, ok := environment[name]
		return value, ok
	})
	fmt.Println(err)
	// Output:
	// --idle-timeout (from environment PD_IDLE_TIMEOUT): bad value "soon": must be a duration such as 500ms, 30s or 5m, or a number of seconds
}
