package local

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pdmesh/pdmesh/sim/compose"
	"github.com/pdmesh/pdmesh/sim/testkit/leak"
)

func TestMain(m *testing.M) { leak.Main(m) }

func call(t *testing.T, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, errs bytes.Buffer
	code = Run(context.WithoutCancel(t.Context()), args, os.LookupEnv, &out, &errs)
	return code, out.String(), errs.String()
}

// sleepers is a compose file of programs that are surely there.
func sleepers(t *testing.T) (file, bin string) {
	t.Helper()
	path, err := exec.LookPath("sleep")
	if err != nil {
		t.Fatal(err)
	}
	file = filepath.Join(t.TempDir(), "compose.yml")
	text := `services:
  one: {command: [sleep, "600"]}
  two: {command: [sleep, "600"], depends_on: {one: {condition: service_healthy}}}
`
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return file, filepath.Dir(path)
}

func TestUpStatusDown(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file, bin := sleepers(t)
	up := []string{"up", "--dir", dir, "--file", file, "--bin", bin}
	t.Cleanup(func() { // whatever the test did
		if code, _, errs := call(t, "down", "--dir", dir, "--grace", "0s"); code != 0 {
			t.Errorf("down: %s", errs)
		}
	})
	code, out, errs := call(t, up...)
	if code != 0 || !strings.Contains(out, "2 of 2 processes started") {
		t.Fatalf("exit %d: %s%s", code, out, errs)
	}
	// A second up finds both and leaves them alone.
	first := read(t, dir)
	if code, out, errs = call(t, up...); code != 0 || !strings.Contains(out, "0 of 2 processes started") {
		t.Fatalf("exit %d: %s%s", code, out, errs)
	}
	if err := end(first.find("one")); err != nil {
		t.Fatal(err)
	}
	code, out, errs = call(t, "status", "--dir", dir)
	if code != 1 || !strings.Contains(out, "one      ended") || !strings.Contains(out, "two      running") || !strings.Contains(errs, "not everything runs") {
		t.Errorf("exit %d: %s%s", code, out, errs)
	}
	// The next one brings back what is missing.
	if code, out, errs = call(t, up...); code != 0 || !strings.Contains(out, "1 of 2 processes started") {
		t.Fatalf("exit %d: %s%s", code, out, errs)
	}
	second := read(t, dir)
	if second.find("two").PID != first.find("two").PID || second.find("one").PID == first.find("one").PID {
		t.Errorf("before %+v, after %+v", first, second)
	}
	if code, out, errs = call(t, "down", "--dir", dir, "--volumes"); code != 0 || out != "2 processes ended\n" {
		t.Fatalf("exit %d: %s%s", code, out, errs)
	}
	for _, p := range second.Processes {
		if p.alive() {
			t.Errorf("%s still runs", p.Name)
		}
	}
	if code, out, _ = call(t, "status", "--dir", dir); code != 0 || !strings.Contains(out, "scripts/fleet up") {
		t.Errorf("exit %d: %s", code, out)
	}
	if code, out, errs = call(t, "down", "--dir", dir); code != 0 || out != "0 processes ended\n" {
		t.Errorf("exit %d: %s%s", code, out, errs)
	}
}

func read(t *testing.T, dir string) *state {
	t.Helper()
	s, err := (&app{dir: dir}).read()
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func end(p *started) error {
	proc, err := os.FindProcess(p.PID)
	if err != nil {
		return err
	}
	if err := proc.Kill(); err != nil {
		return err
	}
	_, err = proc.Wait() // it is a child of the test here
	return err
}

// A process id that another party has by now is not touched.
func TestDownEndsOnlyWhatUpStarted(t *testing.T) {
	t.Parallel()
	other := exec.Command("sleep", "600")
	if err := other.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- other.Wait() }()
	t.Cleanup(func() { // gone already only if the test failed
		_ = other.Process.Kill()
		<-ended
	})
	dir := t.TempDir()
	raw, err := json.Marshal(state{Processes: []*started{{
		Process: compose.Process{Name: "gone"}, PID: other.Process.Pid, Born: "another time",
	}}})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "fleet.json"), raw, 0o600); err != nil {
		t.Fatal(err)
	}
	if code, out, errs := call(t, "down", "--dir", dir, "--grace", "0s"); code != 0 || out != "0 processes ended\n" {
		t.Fatalf("exit %d: %s%s", code, out, errs)
	}
	if _, running := birth(other.Process.Pid); !running {
		t.Fatal("down has ended somebody else's process")
	}
}

func TestUpTellsWhatIsWrong(t *testing.T) {
	t.Parallel()
	file, bin := sleepers(t)
	text := "services: {short: {command: [sleep, nonsense]}, ill: {command: [sleep, \"600\"], healthcheck: {test: [CMD, false]}}}"
	bad := filepath.Join(t.TempDir(), "compose.yml")
	if err := os.WriteFile(bad, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	ill := filepath.Join(t.TempDir(), "compose.yml")
	if err := os.WriteFile(ill, []byte(strings.Replace(text, "nonsense", "600", 1)), 0o600); err != nil {
		t.Fatal(err)
	}
	// Its check says why once, and is under way for good from then on, with a
	// child that has its output too.
	slow := filepath.Join(t.TempDir(), "compose.yml")
	asked := filepath.Join(t.TempDir(), "asked")
	check := fmt.Sprintf("test: [CMD, sh, -c, 'if [ -e \"%[1]s\" ]; then sleep 600; fi; touch \"%[1]s\"; exit 3']", asked)
	text = strings.Replace(strings.Replace(text, "nonsense", "600", 1), "test: [CMD, false]", check, 1)
	if err := os.WriteFile(slow, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	broken := t.TempDir()
	if err := os.WriteFile(filepath.Join(broken, "fleet.json"), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	for i, tc := range []struct {
		code int
		args []string
		want []string
	}{
		{1, []string{"up", "--file", "none"}, []string{"no such file"}},
		{1, []string{"up", "--file", file, "--bin", "."}, []string{"start one", "make build"}},
		{1, []string{"up", "--file", bad, "--bin", bin}, []string{"short has ended", "invalid time interval"}},
		{1, []string{"up", "--file", ill, "--bin", bin, "--timeout", "2s"}, []string{"ill is not healthy", "false: exit status 1"}},
		{1, []string{"up", "--file", slow, "--bin", bin, "--timeout", "2s"}, []string{"ill is not healthy", "deadline", "exit status 3"}},
		{1, []string{"up", "--file", file, "--dir", broken}, []string{"fleet.json"}},
		{2, []string{"status", "-o", "yaml"}, []string{"table or json"}},
		{2, []string{"up", "x"}, []string{"unknown command"}},
		{2, []string{"restart"}, []string{"unknown command"}},
	} {
		args := tc.args
		if args[len(args)-1] != broken {
			dir := t.TempDir()
			args = append(args, "--dir", dir)
			t.Cleanup(func() {
				if code, _, errs := call(t, "down", "--dir", dir, "--grace", "0s"); code != 0 {
					t.Errorf("down: %s", errs)
				}
			})
		}
		code, _, errs := call(t, args...)
		if code != tc.code {
			t.Errorf("%d: %v: exit %d: %s", i, args, code, errs)
		}
		for _, want := range tc.want {
			if !strings.Contains(errs, want) {
				t.Errorf("%d: %q is not in %s", i, want, errs)
			}
		}
	}
}

func TestOneAtATime(t *testing.T) {
	t.Parallel()
	a := &app{dir: t.TempDir()}
	_, done, err := a.open()
	if err != nil {
		t.Fatal(err)
	}
	defer done()
	code, _, errs := call(t, "down", "--dir", a.dir)
	if code != 1 || !strings.Contains(errs, "another fleet command is at work") {
		t.Errorf("exit %d: %s", code, errs)
	}
}

func TestDefaultDirectory(t *testing.T) {
	t.Parallel()
	for want, env := range map[string]map[string]string{
		"/s/pdmesh/fleet":              {"XDG_STATE_HOME": "/s", "HOME": "/h"},
		"/h/.local/state/pdmesh/fleet": {"HOME": "/h"},
	} {
		a := app{lookupEnv: func(name string) (string, bool) { v, ok := env[name]; return v, ok }}
		if got := a.defaultDir(); got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
	if got := fmt.Sprint((&app{dir: "/" + strings.Repeat("x", 120)}).socket("a")); got != "" {
		t.Errorf("a socket at %s", got)
	}
}
