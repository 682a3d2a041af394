package config_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pdmesh/pdmesh/internal/proxy/config"
	"github.com/pdmesh/pdmesh/sim/testkit"
)

// TestReferenceForms has the command lines of the reference
// proxies from their documentation, and their meaning here.
func TestReferenceForms(t *testing.T) {
	t.Parallel()
	type want struct {
		prefill, decode, connector, model, host string
		port                                    int
		notices                                 []string // a part of each, in order
	}
	tests := []struct {
		name, args string
		want       want
	}{
		{"elastic_proxy", "--model m --prefill localhost:8100 localhost:8101 --decode localhost:8200 localhost:8201 --port 8000",
			want{"127.0.0.1:8100 127.0.0.1:8101", "127.0.0.1:8200 127.0.0.1:8201", "plain", "m", "127.0.0.1", 8000, nil}},
		{"elastic_proxy, short", "-m m -p localhost:8100 -d localhost:8200 localhost:8201 --port 8000",
			want{"127.0.0.1:8100", "127.0.0.1:8200 127.0.0.1:8201", "plain", "m", "127.0.0.1", 8000, nil}},
		{"load-balance proxy", "--host 0.0.0.0 --port 9000 --prefiller-hosts 127.0.0.1 127.0.0.1 --prefiller-ports 8100 8101 " +
			"--decoder-hosts 127.0.0.1 127.0.0.1 --decoder-ports 8200 8201 --max-waiting-retries 3 --waiting-retry-interval 10",
			want{"127.0.0.1:8100 127.0.0.1:8101", "127.0.0.1:8200 127.0.0.1:8201", "nixl", "", "0.0.0.0", 9000, nil}},
		{"load-balance proxy, its defaults", "--prefiller-hosts 10.0.0.1 --prefiller-ports 8100",
			want{"10.0.0.1:8100", "127.0.0.1:8002", "nixl", "", "127.0.0.1", 8000, []string{"no decode instances on the command line: using localhost:8002"}}},
		{"load-balance proxy, one port", "--prefiller-ports 8100 --decoder-ports 8200",
			want{"127.0.0.1:8100", "127.0.0.1:8200", "nixl", "", "127.0.0.1", 8000, nil}},
		{"load-balance proxy, another connector", "--prefiller-ports 8100 --decoder-ports 8200 --connector plain",
			want{"127.0.0.1:8100", "127.0.0.1:8200", "plain", "", "127.0.0.1", 8000, nil}},
		{"load-balance proxy, newer flags", "--prefiller-ports 8100 --decoder-ports 8200 --workers 4 --retry-delay 0.001 --log-level INFO",
			want{"127.0.0.1:8100", "127.0.0.1:8200", "nixl", "", "127.0.0.1", 8000, []string{"--retry-delay has no effect", "--workers has no effect"}}},
		{"load-balance proxy, IPv6", "--prefiller-hosts ::1 [2001:db8::1] --prefiller-ports 8100 8100 --decoder-ports 8200",
			want{"[::1]:8100 [2001:db8::1]:8100", "127.0.0.1:8200", "nixl", "", "127.0.0.1", 8000, nil}},
		{"LMCache, several machines", "--prefiller-host 10.0.0.1,10.0.0.2 --prefiller-port 8000 --decoder-host 10.0.0.3,10.0.0.4 --decoder-port 8000,8001",
			want{"10.0.0.1:8000 10.0.0.2:8000", "10.0.0.3:8000 10.0.0.4:8001", "lmcache", "", "127.0.0.1", 8000, nil}},
		{"LMCache, ports of one host", "--prefiller-host localhost --prefiller-port 7100,7101 --decoder-host localhost --decoder-port 7200,7201 --port 9100 --host localhost",
			want{"127.0.0.1:7100 127.0.0.1:7101", "127.0.0.1:7200 127.0.0.1:7201", "lmcache", "", "localhost", 9100, nil}},
		{"LMCache, consecutive ports", "--prefiller-port 7100 --num-prefillers 2 --decoder-port 7200 --num-decoders 3 --decoder-init-port 7300 --decoder-alloc-port 7400",
			want{"127.0.0.1:7100 127.0.0.1:7101", "127.0.0.1:7200 127.0.0.1:7201 127.0.0.1:7202", "lmcache", "", "127.0.0.1", 8000, nil}},
		{"LMCache, spaces between", "--prefiller-host 10.0.0.1,\u00a010.0.0.2 --prefiller-port 8000 --decoder-port 8200",
			want{"10.0.0.1:8000 10.0.0.2:8000", "127.0.0.1:8200", "lmcache", "", "127.0.0.1", 8000, nil}},
		{"LMCache, a count beside a list", "--prefiller-port 7100,7101 --num-prefillers 5 --decoder-port 7200",
			want{"127.0.0.1:7100 127.0.0.1:7101", "127.0.0.1:7200", "lmcache", "", "127.0.0.1", 8000, []string{"--num-prefillers 5 applies only to one host and one port"}}},
		{"LMCache, its channel", "--prefiller-port 7100 --decoder-port 7200 --proxy-host localhost --proxy-port 7500",
			want{"127.0.0.1:7100", "127.0.0.1:7200", "lmcache", "", "127.0.0.1", 8000, nil}},
		{"LMCache, its channel alone", "--proxy-port 7500",
			want{"127.0.0.1:8100", "127.0.0.1:8200", "lmcache", "", "127.0.0.1", 8000, []string{
				"using localhost:8100", "using localhost:8200"}}},
		{"LMCache, a connector of ours", "--prefiller-port 7100 --decoder-port 7200 --connector nixl",
			want{"127.0.0.1:7100", "127.0.0.1:7200", "nixl", "", "127.0.0.1", 8000, nil}},
		{"LMCache, newer flags", "--prefiller-port 7100 --decoder-port 7200 --model org/m --pd-buffer-size 2147483648 --chunk-size 256",
			want{"127.0.0.1:7100", "127.0.0.1:7200", "lmcache", "org/m", "127.0.0.1", 8000,
				[]string{"--pd-buffer-size has no effect", "--chunk-size has no effect"}}},
		{"a number of tries names no instances", "--max-retries 2", want{"", "", "plain", "", "127.0.0.1", 8000, nil}},
		{"names", "--prefill node-1:8100 --decode 127.0.0.1:8200", want{"node-1:8100", "127.0.0.1:8200", "plain", "", "127.0.0.1", 8000,
			[]string{"node-1:8100 is a name"}}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			p := mustLoad(t, nil, strings.Split(tt.args, " ")...)
			got := want{strings.Join(p.Prefill, " "), strings.Join(p.Decode, " "), p.Connector, p.Model, p.Host, p.Port, p.Notices}
			if len(got.notices) == len(tt.want.notices) {
				for i, words := range tt.want.notices {
					if strings.Contains(got.notices[i], words) {
						got.notices[i] = words
					}
				}
			}
			assert.Empty(t, cmp.Diff(tt.want, got, cmp.AllowUnexported(want{})))
		})
	}
}

func TestLMCachePorts(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name, args string
		want       map[string]map[string][]int
	}{
		{"one per rank, the same everywhere", "--decoder-host 10.0.0.3,10.0.0.4 --decoder-port 8000 --decoder-init-port 7300,7301 --decoder-alloc-port 7400,7401",
			map[string]map[string][]int{
				"10.0.0.3:8000": {"lmcache_init": {7300, 7301}, "lmcache_alloc": {7400, 7401}},
				"10.0.0.4:8000": {"lmcache_init": {7300, 7301}, "lmcache_alloc": {7400, 7401}},
			}},
		{"consecutive instances", "--decoder-port 7200 --num-decoders 2 --decoder-init-port 7300,7310 --decoder-alloc-port 7400,7410",
			map[string]map[string][]int{
				"127.0.0.1:7200": {"lmcache_init": {7300, 7310}, "lmcache_alloc": {7400, 7410}},
				"127.0.0.1:7201": {"lmcache_init": {7301, 7311}, "lmcache_alloc": {7401, 7411}},
			}},
		{"the script's own", "--decoder-port 7200",
			map[string]map[string][]int{"127.0.0.1:7200": {"lmcache_init": {8300}, "lmcache_alloc": {8400}}}},
		{"one of the two", "--decoder-port 7200 --decoder-init-port 7300,7301",
			map[string]map[string][]int{"127.0.0.1:7200": {"lmcache_init": {7300, 7301}, "lmcache_alloc": {8400}}}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			assert.Empty(t, cmp.Diff(tt.want, mustLoad(t, nil, strings.Fields(tt.args)...).DecodePorts))
		})
	}
}

// TestReferenceNumbers checks the meaning of the numeric flags of the reference proxies.
func TestReferenceNumbers(t *testing.T) {
	t.Parallel()
	type numbers struct {
		interval            time.Duration
		checks, fail, tries int
	}
	ours := numbers{2 * time.Second, 0, 3, 4}
	with := func(change func(*numbers)) numbers {
		n := ours
		change(&n)
		return n
	}
	tests := []struct {
		name, args string
		want       numbers
	}{
		{"nothing said", "--prefill a:1 --decode b:1", ours},
		{"elastic_proxy's defaults, said", "--prefill a:1 --check-interval 5 --check-times 10 --retry-times 3", numbers{5 * time.Second, 10, 3, 4}},
		{"checks without an interval are elastic_proxy's", "--check-times 10", with(func(n *numbers) { n.checks, n.interval = 10, 5*time.Second })},
		{"checks with an interval of ours", "--check-times 10 --waiting-retry-interval 1", with(func(n *numbers) { n.checks, n.interval = 10, time.Second })},
		{"an interval without checks", "--check-interval 0.5", with(func(n *numbers) { n.interval = 500 * time.Millisecond })},
		{"failures", "--retry-times 7", with(func(n *numbers) { n.fail = 7 })},
		{"tries", "--max-retries 2", with(func(n *numbers) { n.tries = 2 })},
		{"no retry is one try", "--max-retries 0", with(func(n *numbers) { n.tries = 1 })},
		{"load-balance checks without an interval", "--prefiller-ports 1 --decoder-ports 2 --max-waiting-retries 3", with(func(n *numbers) { n.checks, n.interval = 3, 10*time.Second })},
		{"our checks without an interval", "--max-waiting-retries 3", with(func(n *numbers) { n.checks = 3 })},
		{"load-balance checks", "--prefiller-ports 1 --decoder-ports 2 --max-waiting-retries 3 --waiting-retry-interval 4.5", with(func(n *numbers) { n.checks, n.interval = 3, 4500*time.Millisecond })},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			p := mustLoad(t, nil, strings.Fields(tt.args)...)
			assert.Equal(t, tt.want, numbers{p.WaitingRetryInterval, p.MaxWaitingRetries, p.MaxFailures, p.MaxAttempts})
		})
	}
}

// A flag of a reference proxy takes precedence over environment
// and file, like any flag, and --print-config shows its result.
func TestReferencePrecedenceAndPrint(t *testing.T) {
	t.Parallel()
	file := writeFile(t, "prefill: [127.0.0.1:1]\nwaiting-retry-interval: 1s\nconnector: plain\n")
	env := map[string]string{"PD_DECODE": "127.0.0.1:2", "PD_MAX_ATTEMPTS": "9"}
	p := mustLoad(t, env, strings.Fields("--config "+file+" --prefiller-ports 8100 --decoder-ports 8200 --max-retries 2 --max-waiting-retries 3")...)
	if !slices.Equal(p.Prefill, []string{"127.0.0.1:8100"}) || !slices.Equal(p.Decode, []string{"127.0.0.1:8200"}) || p.MaxAttempts != 2 {
		t.Errorf("prefill %v, decode %v, attempts %d: flags must win", p.Prefill, p.Decode, p.MaxAttempts)
	}
	assert.True(t, p.Connector == "plain" && p.WaitingRetryInterval == time.Second,
		"connector %q, interval %v: what a file says is no default to replace", p.Connector, p.WaitingRetryInterval)
	var out strings.Builder
	require.NoError(t, p.Print(&out))
	for _, line := range []string{"prefill: ['127.0.0.1:8100'] # flag --prefiller-ports", "max-attempts: 2 # flag --max-retries"} {
		assert.Contains(t, strings.NewReplacer(`"`, "'").Replace(out.String()), line,
			"%q is not in:\n%s", line, out.String())
	}
	assert.NotContains(t, out.String(), "prefiller-ports:")
}

func TestBadReferenceForms(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name, args string
		want       []string
	}{
		{"own and load-balance", "--prefill a:1 --prefiller-hosts b --prefiller-ports 1", []string{"--prefill is from the command line of elastic_proxy", "--prefiller-hosts from that of load_balance", "one of them"}},
		{"own and LMCache", "--decode a:1 --decoder-host b", []string{"--decode ", "--decoder-host ", "LMCache"}},
		{"load-balance and LMCache", "--prefiller-hosts a --prefiller-ports 1 --decoder-host b --decoder-port 2", []string{"--prefiller-hosts ", "--decoder-host ", "one of them"}},
		{"elastic number in a load-balance line", "--prefiller-ports 1 --check-interval 5", []string{"--check-interval", "--prefiller-ports"}},
		{"load-balance number in an elastic line", "--prefill a:1 --max-retries 5", []string{"--max-retries is --max-attempts here"}},
		{"load-balance delay in an elastic line", "--prefill a:1 --retry-delay 5", []string{"--retry-delay has no effect here, leave it out"}},
		{"two names of one setting", "--max-retries 5 --max-attempts 6", []string{"--max-retries and --max-attempts are the same setting"}},
		{"two names of the interval", "--check-interval 5 --waiting-retry-interval 6", []string{"--check-interval and --waiting-retry-interval are the same setting"}},
		{"more hosts than ports", "--prefiller-hosts a b --prefiller-ports 1", []string{"--prefiller-hosts has 2 hosts and --prefiller-ports 1 port", "one port for each host"}},
		{"more ports than hosts", "--decoder-ports 1 2 --prefiller-ports 1", []string{"--decoder-hosts has 1 host and --decoder-ports 2 ports"}},
		{"both sides unequal", "--prefiller-hosts a b --prefiller-ports 1 --decoder-hosts a --decoder-ports 1 2", []string{"--prefiller-hosts", "--decoder-hosts"}},
		{"LMCache two hosts three ports", "--prefiller-host a,b --prefiller-port 1,2,3", []string{"--prefiller-host has 2 hosts and --prefiller-port 3 ports", "one port or one host for all"}},
		{"port is a word", "--prefiller-ports http", []string{`--prefiller-ports: bad value "http"`, "1 to 65535"}},
		{"port zero", "--decoder-ports 0", []string{"--decoder-ports:", "1 to 65535"}},
		{"port too large", "--decoder-port 65536", []string{"--decoder-port:", "1 to 65535"}},
		{"port of a list", "--decoder-port 8000,x", []string{`--decoder-port: bad value "x"`}},
		{"port item empty", "--decoder-port 8000,,8001", []string{"--decoder-port:", "empty"}},
		{"ports missing", "--prefiller-hosts a --prefiller-ports --decoder-ports 1", []string{"--prefiller-ports:", "separate items by commas"}},
		{"hosts missing", "--prefiller-hosts --prefiller-ports 1", []string{"--prefiller-hosts:", "separate items by commas"}},
		{"host with port", "--prefiller-hosts 10.0.0.1:8100 --prefiller-ports 8100", []string{"--prefiller-hosts:", "goes to --prefiller-ports"}},
		{"host is a URL", "--prefiller-host http://10.0.0.1 --prefiller-port 8100", []string{"--prefiller-host:", "invalid host"}},
		{"host is a wildcard", "--prefiller-hosts 0.0.0.0 --prefiller-ports 8100", []string{"--prefiller-hosts:", "wildcard"}},
		{"host odd", "--prefiller-hosts a_/b --prefiller-ports 8100", []string{"--prefiller-hosts:"}},
		{"outside the networks", "--decoder-hosts 10.0.0.1 --decoder-ports 80 --prefiller-hosts 192.0.2.1 --prefiller-ports 1 --instance-allow 192.0.2.0/24", []string{"--decoder-hosts: 10.0.0.1:80", "--instance-allow"}},
		{"count zero", "--num-prefillers 0", []string{"--num-prefillers: 0", "1 to 1000"}},
		{"count is a word", "--num-decoders two", []string{"--num-decoders:", "whole number"}},
		{"consecutive ports run out", "--prefiller-port 65535 --num-prefillers 2", []string{"--prefiller-port", "1 to 65535"}},
		{"consecutive LMCache ports run out", "--decoder-port 1000 --num-decoders 2 --decoder-init-port 65535", []string{"--decoder-init-port", "65535"}},
		{"init and alloc unequal", "--decoder-init-port 1,2 --decoder-alloc-port 3", []string{"--decoder-init-port has 2 ports and --decoder-alloc-port 1 port", "rank"}},
		{"init is a word", "--decoder-init-port x", []string{"--decoder-init-port:"}},
		{"check-times is a word", "--check-times often", []string{"--check-times:", "whole number"}},
		{"check-times negative", "--check-times -1", []string{"--check-times:", "negative"}},
		{"check-interval zero", "--check-interval 0", []string{"--check-interval:", "out of range"}},
		{"retry-times zero", "--retry-times 0", []string{"--retry-times:", "out of range"}},
		{"max-retries is a word", "--max-retries some", []string{"--max-retries:", "whole number"}},
		{"max-retries huge", "--max-retries 1000", []string{"--max-retries:", "out of range"}},
		{"delay is a word", "--retry-delay soon", []string{"--retry-delay:", "number of seconds"}},
		{"delay negative", "--retry-delay -1", []string{"--retry-delay:", "negative"}},
		{"workers is a word", "--workers all", []string{"--workers:", "whole number"}},
		{"connector that does not exist", "--prefiller-port 1 --connector teleport", []string{"--connector:", "known are plain, nixl"}},
		{"session header", "--client-bound-key session:id", []string{"--client-bound-key:", "header"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			_, err := load(t, nil, strings.Split(tt.args, " ")...)
			refused(t, err, tt.want)
		})
	}
}

func TestClientBoundEnvironment(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		env  map[string]string
		on   bool
		name string
	}{
		{nil, false, ""},
		{map[string]string{"CLIENT_BOUND": "true"}, true, ""},
		{map[string]string{"CLIENT_BOUND": "True", "CLIENT_BOUND_KEY": "x-conversation"}, true, "x-conversation"},
		{map[string]string{"CLIENT_BOUND": "false", "CLIENT_BOUND_KEY": "x"}, false, "x"},
		{map[string]string{"CLIENT_BOUND": ""}, false, ""},
	} {
		p := mustLoad(t, tt.env)
		assert.Equal(t, tt.on, p.ClientBound, "%v: bound by", tt.env)
		assert.Equal(t, tt.name, p.ClientBoundKey, "%v: bound by", tt.env)
	}
	_, err := load(t, map[string]string{"CLIENT_BOUND": "perhaps"})
	testkit.Contains(t, fmt.Sprint(err), "--client-bound (from environment CLIENT_BOUND)", "on or off")
}

func TestReferenceArgs(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ in, want string }{
		{"--prefiller-hosts a b --prefiller-ports 1 2 --max-retries 3", "--prefiller-hosts=a --prefiller-hosts=b --prefiller-ports=1 --prefiller-ports=2 --max-retries 3"},
		{"--decoder-port 1,2 --num-decoders 2", "--decoder-port=1,2 --num-decoders 2"},
		{"--prefiller-hosts --prefiller-ports 1", "--prefiller-hosts= --prefiller-ports=1"},
		{"--retry-delay -1 --workers 2", "--retry-delay -1 --workers 2"},
	} {
		assert.Equal(t, tt.want, strings.Join(config.NormalizeArgs(strings.Fields(tt.in)), " "), tt.in)
	}
}
