package command

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pdmesh/pdmesh/bench/report"
	"github.com/pdmesh/pdmesh/internal/cli"
	"github.com/pdmesh/pdmesh/sim/testkit/longform"
	"github.com/pdmesh/pdmesh/test/harness"
)

var bin string

func TestMain(m *testing.M) {
	// The program starts itself as the floor, and here it is this test.
	if len(os.Args) > 1 && os.Args[1] == "floor" {
		cli.Main(Run)
	}
	os.Exit(harness.Main(m, &bin))
}

func bench(t *testing.T, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, errs bytes.Buffer
	code = Run(t.Context(), args, &out, &errs)
	return code, out.String(), errs.String()
}

// TestRun measures our real proxy, too short for figures, but long enough for two
// parts each of those that take turns, and writes everything there is to write.
func TestRun(t *testing.T) {
	t.Parallel()
	longform.Test(t)
	dir := t.TempDir()
	file := func(name string) string { return filepath.Join(dir, name) }
	if err := os.WriteFile(file("README.md"), []byte("a "+report.Begin+report.End+" b"), 0o600); err != nil {
		t.Fatal(err)
	}
	code, stdout, stderr := bench(t, "run", "--bin", bin, "--pin", "off", "--workloads", "small,stream,churn", "--targets", "two-hop,floor,pdmesh,pdmesh-std,nginx",
		"--nginx", "/nonexistent/nginx", "--build", "again="+filepath.Join(bin, "proxy"), "--repeats", "1", "--duration", "1s", "--warmup", "50ms",
		"--into", file("performance"), "--machine", "here", "--readme", file("README.md"))
	if code != 0 {
		t.Fatalf("exit code %d\n%s\n%s", code, stdout, stderr)
	}
	r, err := report.Read(file("performance/here/result.json"))
	if err != nil {
		t.Fatal(err)
	}
	seen := make(map[string]bool)
	for _, c := range r.Cells {
		seen[c.Workload+" "+c.Target] = true
		if c.Target == "nginx" {
			if c.Skipped != "not installed" {
				t.Errorf("nginx was skipped for %q", c.Skipped)
			}
			continue
		}
		if c.Skipped != "" || c.Right == 0 || c.Bad() > 0 || c.Violations > 0 || c.Bare > 0 {
			t.Errorf("%+v", c)
		}
		ours := c.Target == "pdmesh" || c.Target == "pdmesh-std" || c.Target == "again"
		if ours && (c.CPU <= 0 || c.RSSIdle <= 0 || c.RSSPeak < c.RSSIdle || c.Handovers == 0) {
			t.Errorf("our proxy cost nothing: %+v", c)
		}
		if c.Target == "floor" && (c.CPU <= 0 || c.Handovers == 0 || c.Changes != 0) {
			t.Errorf("the floor's cell is %+v", c)
		}
		if c.Workload == "churn" && ours && c.Changes == 0 {
			t.Error("the membership did not change")
		}
	}
	if len(seen) != 20 || len(r.Idle) != 1 {
		t.Errorf("cells %v, idle %v", seen, r.Idle)
	}
	for name, want := range map[string]string{"performance/README.md": "#### Beside floor", "README.md": "pdmesh, `--upstream std`", "performance/here/cpu-small.svg": "pdmesh"} {
		text, err := os.ReadFile(file(name))
		if err != nil || !strings.Contains(string(text), want) {
			t.Errorf("%s lacks %q (%v)", name, want, err)
		}
	}
	before, _ := os.ReadFile(file("performance/README.md"))
	if code, _, stderr := bench(t, "report", file("performance")); code != 0 {
		t.Errorf("report: exit code %d: %s", code, stderr)
	}
	if after, _ := os.ReadFile(file("performance/README.md")); !bytes.Equal(before, after) {
		t.Error("the report from the file is another one")
	}
}

// The report says what came of a soak whose files lie next to it.
func TestSoakTitle(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "soak.json")
	for text, want := range map[string]string{
		"": "Soak:", "{": "Soak:",
		`{"commit":"abc","seconds":60,"rate_per_second":7,"right":5,"wrong":1,"broken":2,"failed":3,"left":4}`: "Soak of commit abc: 60 s at 7 streams/s (the peak was 0), 5 right, 6 wrong, cut or failed, 4 left",
	} {
		if text != "" {
			if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		} else if err := os.RemoveAll(file); err != nil {
			t.Fatal(err)
		}
		if got := soakTitle(file); !strings.HasPrefix(got, want) {
			t.Errorf("%q: %q", text, got)
		}
	}
}

func TestSoak(t *testing.T) {
	t.Parallel()
	longform.Test(t)
	dir := t.TempDir()
	code, stdout, stderr := bench(t, "soak", "--bin", bin, "--pin", "off", "--rate", "50", "--duration", "2s", "--sample", "200ms", "--churn", "200ms",
		"--max-slope", "1e9", "--out", dir)
	// So short a soak says nothing about slopes, and everything else must be right.
	if code != 0 && !strings.Contains(stderr, "per minute it grows") || strings.Contains(stderr, "wrong") {
		t.Fatalf("exit code %d\n%s\n%s", code, stdout, stderr)
	}
	for name, want := range map[string]string{"soak.json": `"wrong": 0`, "soak-memory.svg": "MiB", "soak-goroutines.svg": "polyline"} {
		text, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil || !strings.Contains(string(text), want) {
			t.Errorf("%s lacks %q (%v)", name, want, err)
		}
	}
}

func TestUsage(t *testing.T) {
	t.Parallel()
	tests := []struct {
		args []string
		want string
	}{
		{[]string{"run", "--workloads", "smal"}, "there are small"},
		{[]string{"run", "--targets", "ngnix"}, "use direct"},
		{[]string{"run", "--build", "bin/proxy"}, "NAME=FILE"},
		{[]string{"run", "--build", "pdmesh=bin/proxy"}, "two targets are named pdmesh"},
		{[]string{"run", "--repeats", "0"}, "positive"},
		{[]string{"run", "--patience", "-1s"}, "negative"},
		{[]string{"run", "--quiet", "-1"}, "negative"},
		{[]string{"run", "--engine", "slow"}, "fast or strict"},
		{[]string{"run", "--connector", "x"}, "nixl or plain"},
		{[]string{"run", "--pin", "left"}, "two cores"},
		{[]string{"run", "--nonsense"}, "nonsense"},
		{[]string{"report"}, "1 arg"},
		{[]string{"soak", "--sample", "0s"}, "positive"},
	}
	for _, tt := range tests {
		t.Run(strings.Join(tt.args, " "), func(t *testing.T) {
			t.Parallel()
			code, _, stderr := bench(t, tt.args...)
			if code != 2 || !strings.Contains(stderr, tt.want) {
				t.Errorf("exit code %d, %q does not say %q", code, stderr, tt.want)
			}
		})
	}
}
