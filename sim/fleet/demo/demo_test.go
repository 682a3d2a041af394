package demo

import (
	"bytes"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pdmesh/pdmesh/sim/testkit"
	"github.com/pdmesh/pdmesh/sim/testkit/leak"
)

func TestMain(m *testing.M) { leak.Main(m) }

func TestPrinterBreaksLines(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	p := &printer{w: &out, indent: "   < "}
	for range 32 {
		p.Write([]byte(" bakoti"))
	}
	p.Write([]byte(" tail\n\x1b[2J"))
	p.end()
	lines := strings.Split(strings.TrimRight(out.String(), "\n"), "\n")
	if len(lines) != 4 {
		t.Fatalf("%d lines:\n%s", len(lines), out.String())
	}
	for i, line := range lines {
		assert.LessOrEqual(t, len(line), width, "line %d has %d columns", i, len(line))
		want := "     bakoti"
		if i == 0 {
			want = "   < bakoti"
		}
		assert.True(t, strings.HasPrefix(line, want), "line %d starts with %.12q, want %q", i, line, want)
	}
	assert.Equal(t, 32, strings.Count(out.String(), "bakoti"), "words")
	require.Contains(t, out.String(), `tail\n\u001b[2J`)
}

func TestUsage(t *testing.T) {
	t.Parallel()
	for args, want := range map[string]string{
		"--what":               "unknown flag",
		"more":                 "unexpected argument",
		"--connector teleport": `unknown connector "teleport"`,
		"--proxies 0":          "invalid --proxies 0: must be between 1 and 9",
		"--proxies 10":         "invalid --proxies 10: must be between 1 and 9",
		"--proxies many":       `--proxies: bad value "many": must be a whole number`,
		"--etcd 2":             "invalid --etcd 2: must be 1, 3 or 5, or 0",
		"--etcd=-1":            "invalid --etcd -1",
		"--keep --once":        "--keep and --once exclude each other",
	} {
		var out, errs bytes.Buffer
		if code := Run(t.Context(), strings.Fields(args), &out, &errs); code != 2 || !strings.Contains(errs.String(), want) {
			t.Errorf("%s: exit code %d, %q", args, code, errs.String())
		}
	}
}

func TestMissingPrograms(t *testing.T) {
	t.Parallel()
	var out, errs bytes.Buffer
	assert.Equal(t, 1, Run(t.Context(), []string{"--once", "--bin", t.TempDir()}, &out, &errs), "exit code")
	require.True(t, testkit.Contains(t, errs.String(), "step 1 failed", "no such file"))
	errs.Reset()
	if code := Run(t.Context(), []string{"--etcd", "3", "--bin", t.TempDir()}, &out, &errs); code != 1 || !strings.Contains(errs.String(), "no program etcd in ") {
		t.Errorf("exit code %d, %q", code, errs.String())
	}
}
