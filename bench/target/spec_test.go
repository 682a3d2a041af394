package target

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pdmesh/pdmesh/sim/testkit/leak"
)

func TestMain(m *testing.M) { leak.Main(m) }

func TestParseSpec(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"direct", "two-hop", "nginx", "vllm-router", "floor", "pdmesh", "pdmesh-std", "pdmesh-traced"} {
		if s, err := ParseSpec(name); err != nil || s.Name != name {
			t.Errorf("%s: %+v, %v", name, s, err)
		}
	}
	s, err := ParseSpec("other@/health=serve --port {port} --prefill {prefill} --decode-host={decode_host} --decode-port={decode_port}")
	if err != nil || s.Name != "other" || s.Ready != "/health" || s.Kind != Command {
		t.Fatalf("%+v, %v", s, err)
	}
	site := Site{Prefill: []string{"127.0.0.1:1", "127.0.0.1:2"}, Decode: []string{"127.0.0.1:3"}}
	if got, want := expand(s.Command, 80, site), "serve --port 80 --prefill 127.0.0.1:1 127.0.0.1:2 --decode-host=127.0.0.1 --decode-port=3"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	for _, bad := range []string{"", "ngnix", "x=serve --port 80", "=serve {port}"} {
		if _, err := ParseSpec(bad); !errors.Is(err, ErrSpec) {
			t.Errorf("%q: error %v, want ErrSpec", bad, err)
		}
	}
}

// What our proxy is told in addition follows what every target of its kind is told.
func TestMeshCommand(t *testing.T) {
	t.Parallel()
	l := &Lab{dir: "/lab", o: Options{BinDir: "/bin"}}
	s, err := ParseSpec("pdmesh-std")
	if err != nil {
		t.Fatal(err)
	}
	argv, err := l.meshCommand(s, Site{Connector: "nixl", Etcd: "127.0.0.1:1", Prefix: "/p"}, 80)
	if err != nil {
		t.Fatal(err)
	}
	want := "/bin/proxy --host 127.0.0.1 --port 80 --connector nixl --state-dir /lab/state-80 --etcd-endpoints 127.0.0.1:1 --etcd-prefix /p --upstream std"
	if got := strings.Join(argv, " "); got != want {
		t.Errorf("%s, want %s", got, want)
	}
}

func TestRouterCommand(t *testing.T) {
	t.Parallel()
	here, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	argv, err := routerCommand(Spec{Program: here}, Site{Prefill: []string{"127.0.0.1:1", "127.0.0.1:2"}, Decode: []string{"127.0.0.1:3"}}, 80)
	if err != nil {
		t.Fatal(err)
	}
	if got, want := strings.Join(argv, " "), "--prefill http://127.0.0.1:1 --prefill http://127.0.0.1:2 --decode http://127.0.0.1:3"; !strings.HasSuffix(got, want) {
		t.Errorf("%s does not end with %s", got, want)
	}
	if _, err := routerCommand(Spec{Program: "no-such-router"}, Site{}, 80); !errors.Is(err, ErrAbsent) {
		t.Errorf("a router that is not there: %v", err)
	}
}

// A build that is named by a path from here must be found from where it is started.
func TestLocated(t *testing.T) {
	t.Parallel()
	here, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{"bin/proxy": filepath.Join(here, "bin/proxy"), "/opt/proxy": "/opt/proxy", "proxy": "proxy"} {
		if got, err := located(name); err != nil || got != want {
			t.Errorf("%s: %s, %v, want %s", name, got, err, want)
		}
	}
}
