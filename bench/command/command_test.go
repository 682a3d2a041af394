package command

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pdmesh/pdmesh/bench/report"
	"github.com/pdmesh/pdmesh/sim/testkit"
	"github.com/pdmesh/pdmesh/sim/testkit/longform"
	"github.com/pdmesh/pdmesh/test/harness"
)

var bin string

func TestMain(m *testing.M) { os.Exit(harness.Main(m, &bin)) }

func bench(t *testing.T, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	return benchUntil(t.Context(), args...)
}

func benchUntil(ctx context.Context, args ...string) (code int, stdout, stderr string) {
	var out, errs bytes.Buffer
	code = Run(ctx, args, &out, &errs)
	return code, out.String(), errs.String()
}

// TestRun measures our proxy with whole responses and with streams, in two turns, too short
// for meaningful figures.
func TestRun(t *testing.T) {
	t.Parallel()
	longform.Test(t)
	dir := t.TempDir()
	file := func(name string) string { return filepath.Join(dir, name) }
	code, stdout, stderr := bench(t, "run", "--bin", bin, "--pin", "off", "--workloads", "small,prompt64k,open200", "--targets", "nginx,pdmesh,least_loaded",
		"--nginx", "/nonexistent/nginx", "--build", "again="+filepath.Join(bin, "proxy"), "--repeats", "1", "--duration", "1s", "--warmup", "50ms",
		"--into", file("performance"), "--machine", "here", "--against", "pdmesh")
	require.Equal(t, 0, code, "exit code %d\n%s\n%s", code, stdout, stderr)
	r, err := report.Read(file("performance/here/result.json"))
	require.NoError(t, err)
	assert.True(t, len(r.Cells) == 12 && strings.Contains(stdout, "against pdmesh"),
		"%d cells, want 12\n%s", len(r.Cells), stdout)
	for _, c := range r.Cells {
		if c.Target == "nginx" {
			assert.Equal(t, report.NotInstalled, c.Skipped, "nginx was skipped")
			continue
		}
		if c.Skipped != "" || c.Right == 0 && c.Open == 0 || c.Tokens == 0 || c.Bad() > 0 || c.CPU <= 0 || c.RSSIdle <= 0 || c.RSS < c.RSSIdle {
			t.Errorf("%+v", c)
		}
	}
	if _, err := os.Stat(file("performance/here/cpu-small.svg")); err != nil {
		t.Error(err)
	}
	before, err := os.ReadFile(file("performance/README.md"))
	assert.True(t, err == nil && strings.Contains(string(before), "nginx is not installed"), "%v\n%s", err, before)
	if code, _, stderr := bench(t, "report", file("performance")); code != 0 {
		t.Errorf("report: exit code %d: %s", code, stderr)
	}
	if after, err := os.ReadFile(file("performance/README.md")); err != nil || !bytes.Equal(before, after) {
		t.Errorf("the page from the file is different (%v)", err)
	}
}

// TestRun_Interrupted ends the measurement while the first target gets the load.
func TestRun_Interrupted(t *testing.T) {
	longform.Test(t)
	dir := t.TempDir()
	t.Setenv("TMPDIR", dir)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		code, _, stderr := benchUntil(ctx, "run", "--bin", bin, "--pin", "off", "--workloads", "small", "--targets", "pdmesh,least_loaded",
			"--repeats", "1", "--warmup", "10m", "--json", filepath.Join(dir, "result.json"))
		assert.True(t, code != 0 && strings.Contains(stderr, context.Canceled.Error()), "exit code %d\n%s", code, stderr)
	}()
	testkit.Eventually(t, time.Minute, func() error {
		logs, err := filepath.Glob(filepath.Join(dir, "*", "logs", "*.log"))
		if err != nil {
			return err
		}
		requests := 0
		for _, log := range logs {
			b, err := os.ReadFile(log)
			if err != nil {
				return err
			}
			requests += bytes.Count(b, []byte("outcome=ok"))
		}
		if requests < 1000 { // the first requests are 20 for each target
			return fmt.Errorf("%d requests", requests)
		}
		return nil
	})
	cancel()
	<-done
}

func TestUsage(t *testing.T) {
	t.Parallel()
	tests := []struct {
		args []string
		want string
	}{
		{[]string{"run", "--workloads", "smal"}, "must be one of small"},
		{[]string{"run", "--targets", "ngnix"}, "must be one of pdmesh"},
		{[]string{"run", "--build", "bin/proxy"}, "NAME=FILE"},
		{[]string{"run", "--build", "pdmesh=bin/proxy"}, "two targets have the name pdmesh"},
		{[]string{"run", "--repeats", "0"}, "positive"},
		{[]string{"run", "--pin", "left"}, "two cores"},
		{[]string{"run", "--nonsense"}, "nonsense"},
		{[]string{"report"}, "1 arg"},
	}
	for _, tt := range tests {
		t.Run(strings.Join(tt.args, " "), func(t *testing.T) {
			t.Parallel()
			code, _, stderr := bench(t, tt.args...)
			assert.True(t, code == 2 && strings.Contains(stderr, tt.want), "exit code %d, %q lacks %q", code, stderr, tt.want)
		})
	}
}
