package compose_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/pdmesh/pdmesh/sim/compose"
	"github.com/pdmesh/pdmesh/sim/testkit/leak"
)

func TestMain(m *testing.M) { leak.Main(m) }

const example = `
x-engine: &engine
  image: engines
  environment: &env {A: one, HOST: 0.0.0.0}
services:
  store:
    command: [etcd, --name=store, "--data-dir=/data/x", "--listen-client-urls=http://0.0.0.0:2379", "--initial-cluster=store=http://store:2380"]
    volumes: ["disk:/data"]
    healthcheck: {test: [CMD, etcdctl, "--endpoints=http://127.0.0.1:2379", health]}
  front:
    command: [proxy, "--allow=${ALLOW:-10.9.0.0/16}", "--etcd-endpoints=store:2379", "--price=$$5", "--data=/database"]
    environment: {PD_PORT: "8000", KEY: "${KEY:-none}"}
    ports: ["127.0.0.1:8080:8000"]
    depends_on: {store: {condition: service_healthy}}
    stop_grace_period: 1m5s
  work:
    <<: *engine
    command: [fakevllm, --host=0.0.0.0, --port=8100, --side-channel-host=work]
  work-agent:
    command: [agent, "--address=work:8100", "--engine=http://127.0.0.1:8100", "--etcd=http://store:2379,other-store:2379"]
    network_mode: service:work
    depends_on: {work: {condition: service_started}}
  gpu: {profiles: [gpu], command: [x]}
networks: {n: {ipam: {config: [{subnet: 10.9.0.0/16}]}}}
`

func load(t *testing.T, text string, env map[string]string) (*compose.File, error) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "compose.yml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return compose.Load(path, func(name string) (string, bool) { v, ok := env[name]; return v, ok })
}

func ports(published bool) *compose.Ports {
	next := 4000
	return &compose.Ports{Taken: map[string]int{}, Published: published, Next: func() (int, error) { next++; return next, nil }}
}

func TestPlan(t *testing.T) {
	t.Parallel()
	f, err := load(t, example, map[string]string{"KEY": "", "ALLOW": ""})
	if err != nil {
		t.Fatal(err)
	}
	p := ports(true)
	got, err := f.Plan("/state", p)
	if err != nil {
		t.Fatal(err)
	}
	want := []compose.Process{
		{
			Name:  "store",
			Args:  []string{"etcd", "--name=store", "--data-dir=/state/volumes/disk/x", "--listen-client-urls=http://127.0.0.1:4001", "--initial-cluster=store=http://127.0.0.1:4002"},
			Check: []string{"etcdctl", "--endpoints=http://127.0.0.1:4001", "health"},
			After: map[string]bool{}, Grace: 10 * time.Second, Listens: []string{"127.0.0.1:4001", "127.0.0.1:4002"},
		},
		{
			Name: "work", Args: []string{"fakevllm", "--host=127.0.0.1", "--port=4003", "--side-channel-host=127.0.0.1"},
			Env: []string{"A=one", "HOST=127.0.0.1"}, After: map[string]bool{}, Grace: 10 * time.Second, Listens: []string{"127.0.0.1:4003"},
		},
		{
			Name: "front", Args: []string{"proxy", "--allow=127.0.0.0/8", "--etcd-endpoints=127.0.0.1:4001", "--price=$5", "--data=/database"},
			Env: []string{"KEY=none", "PD_PORT=8080"}, After: map[string]bool{"store": true}, Level: 1,
			Grace: 65 * time.Second, Listens: []string{"127.0.0.1:8080"},
		},
		{
			Name:  "work-agent",
			Args:  []string{"agent", "--address=127.0.0.1:4003", "--engine=http://127.0.0.1:4003", "--etcd=http://127.0.0.1:4001,other-store:2379"},
			After: map[string]bool{"work": false}, Level: 1, Grace: 10 * time.Second,
		},
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("(-want +got)\n%s", d)
	}
	// What was handed out is handed out again; the published one only if asked.
	q := ports(false)
	q.Taken = p.Taken
	again, err := f.Plan("/state", q)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(got, again); d != "" {
		t.Errorf("the second time (-first +second)\n%s", d)
	}
	free, err := f.Plan("/state", ports(false))
	if err != nil || free[2].Listens[0] == "127.0.0.1:8080" {
		t.Errorf("%v, %v", free, err)
	}
}

func TestVariables(t *testing.T) {
	t.Parallel()
	f, err := load(t, `services: {a: {command: [x, "${ONE}", "${TWO:-d}", "${TWO-d}", "${NONE:-d}", "${NONE-d}", "${NONE}", "a${ONE}b"]}}`,
		map[string]string{"ONE": "1", "TWO": ""})
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff([]string{"x", "1", "d", "", "d", "d", "", "a1b"}, f.Services["a"].Command); d != "" {
		t.Error(d)
	}
}

func TestRefuses(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct{ name, text, want string }{
		{"no YAML", "a: [", "did not find"},
		{"nothing", "services: {}", "no services"},
		{"profiles only", "services: {a: {profiles: [p], command: [x]}}", "no services"},
		{"no command", "services: {a: {}}", "a has no command"},
		{"dependency", "services: {a: {command: [x], depends_on: {b: {condition: service_started}}}}", "depends on b"},
		{"condition", "services: {a: {command: [x]}, b: {command: [x], depends_on: {a: {condition: later}}}}", `condition "later"`},
		{"network", "services: {a: {command: [x], network_mode: host}}", `network_mode "host"`},
		{"circle", "services: {a: {command: [x], depends_on: {b: {condition: service_started}}}, b: {command: [x], depends_on: {a: {condition: service_started}}}}", "circle"},
		{"shell", "services: {a: {command: [x], healthcheck: {test: [CMD-SHELL, true]}}}", "no shell"},
		{"port", "services: {a: {command: [x, --port=many]}}", `"many" is no port`},
		{"grace", "services: {a: {command: [x], stop_grace_period: long}}", "long"},
		{"variable", "services: {a: {command: [x, $HOME]}}", "$$ for a dollar"},
		{"required variable", "services: {a: {command: [x, '${A:?must be set}']}}", "$$ for a dollar"},
	} {
		f, err := load(t, tc.text, nil)
		if err == nil {
			_, err = f.Plan("/state", ports(true))
		}
		if !errors.Is(err, compose.ErrFile) || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: %v, want %q", tc.name, err, tc.want)
		}
	}
}
