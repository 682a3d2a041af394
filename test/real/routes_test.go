package real_test

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// The facts about vLLM that the daily tests rely on are checked against the installed vLLM: its routes, its
// answers to forms, and the answers of its middleware to browsers.

// askLab runs a program of the lab in its environment and returns its output.
func askLab(t *testing.T, program string, input []byte) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, filepath.Join(lab.dir, "venv", "bin", "python"), absolute(program))
	cmd.Env = append([]string{"HOME=" + t.TempDir(), "PATH=" + os.Getenv("PATH")}, lab.env...)
	var out, errs bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(input), &out, &errs
	if err := cmd.Run(); err != nil {
		t.Fatalf("%s: %v\n%s%s", program, err, out.String(), errs.String())
	}
	return out.String()
}

func TestRoutesOfVLLM(t *testing.T) {
	if short() {
		t.Skip("not part of the short form")
	}
	raw, err := os.ReadFile("../../internal/httpapi/testdata/vllm-0.32.routes")
	require.NoError(t, err)
	want := map[string]bool{}
	for line := range strings.Lines(string(raw)) {
		if !strings.HasPrefix(line, "#") {
			want[line] = true
		}
	}
	n := 0
	for line := range strings.Lines(askLab(t, "lab/routes.py", nil)) {
		if !want[line] {
			t.Errorf("vLLM has an unlisted route %s", line)
		}
		delete(want, line)
		n++
	}
	for line := range want {
		t.Errorf("vLLM lacks the route %s", line)
	}
	logf("%d routes of vLLM are those of the list", n)
}

func TestFormsOfVLLM(t *testing.T) {
	if short() {
		t.Skip("not part of the short form")
	}
	replay(t, "../../sim/fakevllm/testdata/forms.json", "lab/forms.py")
}

func TestBrowsersOfVLLM(t *testing.T) {
	if short() {
		t.Skip("not part of the short form")
	}
	replay(t, "../../internal/httpapi/testdata/cors.json", "lab/cors.py")
}

// replay repeats recorded requests and compares the answers. The program reads the records and prints each
// with its current answer.
func replay(t *testing.T, file, program string) {
	t.Helper()
	raw, err := os.ReadFile(file)
	require.NoError(t, err)
	var recorded []map[string]any
	require.NoError(t, json.Unmarshal(raw, &recorded))
	lines := strings.Split(strings.TrimSpace(askLab(t, program, raw)), "\n")
	if len(lines) != len(recorded) || len(lines) < 50 {
		t.Fatalf("%d answers to %d requests", len(lines), len(recorded))
	}
	for i, line := range lines {
		var got map[string]any
		require.NoError(t, json.Unmarshal([]byte(line), &got))
		if !reflect.DeepEqual(got, recorded[i]) {
			t.Errorf("%s: got %s\nrecorded %v", recorded[i]["name"], line, recorded[i])
		}
	}
	logf("%s: %d answers are those recorded", program, len(lines))
}
