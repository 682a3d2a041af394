package command

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pdmesh/pdmesh/sim/testkit/leak"
)

func TestMain(m *testing.M) { leak.Main(m) }

// traceFile returns the name of a trace of n requests.
func traceFile(t *testing.T, n int) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "trace.jsonl")
	text := strings.Repeat(`{"timestamp":0,"input_length":1500,"output_length":320,"hash_ids":[0,1,2]}`+"\n", n)
	require.NoError(t, os.WriteFile(file, []byte(text), 0o600))
	return file
}

func TestCommandLine(t *testing.T) {
	t.Parallel()
	file := traceFile(t, 20)
	for _, tt := range []struct {
		name   string
		args   []string
		code   int
		output string
	}{
		{"help", []string{"--help"}, 0, "model"},
		{"unknown flag", []string{"run", "--gpu"}, 2, "unknown flag"},
		{"no trace", []string{"model"}, 2, "--trace is missing"},
		{"no such trace", []string{"model", "--trace", "/nowhere"}, 1, "no such file"},
		{"part", []string{"model", "--trace", file, "--part", "third"}, 2, `part "third"`},
		{"no request in the first half", []string{"model", "--trace", traceFile(t, 1)}, 2, `part "first" of the trace has no request`},
		{"rate", []string{"model", "--trace", file, "--rate", "0"}, 2, "must be positive"},
		{"rate that is no number", []string{"model", "--trace", file, "--rate", "NaN"}, 2, "must be positive"},
		{"seed of a replay", []string{"run", "--trace", file, "--seed", "2"}, 2, "unknown flag"},
		{"speed", []string{"run", "--trace", file, "--speed", "0"}, 2, "must be positive"},
		{"rates", []string{"disaggregate", "--trace", file, "--rates", "0,1"}, 2, "must be positive"},
		{"two policies", []string{"disaggregate", "--trace", file, "--targets", "prefix,session"}, 2, "one policy"},
		{"phase", []string{"model", "--trace", file, "--roles", "--phase", "1s"}, 2, "--phase 1m or more"},
		{"policy", []string{"model", "--trace", file, "--targets", "astrology"}, 1, "no such policy"},
		{"model", []string{"model", "--trace", file, "--targets", "session"}, 0, "| model session |"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			var out bytes.Buffer
			if code := Run(t.Context(), tt.args, &out, &out); code != tt.code || !strings.Contains(out.String(), tt.output) {
				t.Errorf("code %d, not %d: %s", code, tt.code, out.String())
			}
		})
	}
}
