package target

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pdmesh/pdmesh/sim/testkit"
	"github.com/pdmesh/pdmesh/sim/testkit/leak"
)

func TestMain(m *testing.M) { leak.Main(m) }

func TestParse(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"nginx", "vllm-router", "smg", "pdmesh", "round_robin", "prefix"} {
		if s, err := Parse(name); err != nil || s.Name != name {
			t.Errorf("%s: %+v, %v", name, s, err)
		}
	}
	if _, err := Parse("ngnix"); !errors.Is(err, ErrUnknown) || !strings.Contains(err.Error(), "pdmesh, vllm-router, smg") {
		t.Errorf("error %v, want ErrUnknown", err)
	}
}

func TestArgs(t *testing.T) {
	t.Parallel()
	l := &Lab{dir: "/lab"}
	site := Site{Prefill: []string{"127.0.0.1:1", "127.0.0.1:2"}, Decode: []string{"127.0.0.1:3"}, Connector: "nixl", Etcd: "127.0.0.1:4", Prefix: "/p"}
	got := strings.Join(l.meshArgs(Spec{Flags: []string{"--upstream", "std"}}, site, 80), " ")
	if want := "--host 127.0.0.1 --port 80 --connector nixl --state-dir /lab/state-80 --etcd-endpoints 127.0.0.1:4 --etcd-prefix /p --upstream std"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
	for kind, first := range map[Kind]string{VLLMRouter: "--vllm-pd-disaggregation --host", SMG: "launch --pd-disaggregation --host"} {
		got := strings.Join(peerArgs(Spec{Kind: kind, Policy: "cache_aware"}, site, []int{80, 81}), " ")
		require.True(t, testkit.Contains(t, got, first, "--port 80", "--prometheus-port 81", "--prefill-policy cache_aware", "--prefill http://127.0.0.1:1 --prefill http://127.0.0.1:2 --decode http://127.0.0.1:3"))
	}
}

func TestLab_Locate(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file := filepath.Join(dir, "proxy")
	require.NoError(t, os.WriteFile(file, nil, 0o700)) //nolint:gosec // an executable
	l := &Lab{o: Options{BinDir: dir}}
	if got, err := l.Locate(Spec{}); err != nil || got != file {
		t.Errorf("our proxy: %s, %v, want %s", got, err, file)
	}
	if got, err := l.Locate(Spec{Program: "sh"}); err != nil || !filepath.IsAbs(got) {
		t.Errorf("sh: %s, %v", got, err)
	}
	if _, err := l.Locate(Spec{Program: "no-such-router"}); !errors.Is(err, ErrAbsent) {
		t.Errorf("error %v, want ErrAbsent", err)
	}
}
