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
)

// What the tests of every day stand on is asked of the installed vLLM once more: its
// routes, what it says to forms, and what its middleware says to browsers.

// askLab runs a program of the lab in its environment and returns what it printed.
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
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]bool{}
	for line := range strings.Lines(string(raw)) {
		if !strings.HasPrefix(line, "#") {
			want[line] = true
		}
	}
	n := 0
	for line := range strings.Lines(askLab(t, "lab/routes.py", nil)) {
		if !want[line] {
			t.Errorf("vLLM has %s", line)
		}
		delete(want, line)
		n++
	}
	for line := range want {
		t.Errorf("vLLM has no %s", line)
	}
	say("%d routes of vLLM are those of the list", n)
}

func TestFormsOfVLLM(t *testing.T) {
	if short() {
		t.Skip("not part of the short form")
	}
	again(t, "../../sim/fakevllm/testdata/forms.json", "lab/forms.py")
}

func TestBrowsersOfVLLM(t *testing.T) {
	if short() {
		t.Skip("not part of the short form")
	}
	again(t, "../../internal/httpapi/testdata/cors.json", "lab/cors.py")
}

// again asks what is recorded, and compares. The program reads the records and prints
// each with its answer in place of the recorded one.
func again(t *testing.T, file, program string) {
	t.Helper()
	raw, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var recorded []map[string]any
	if err := json.Unmarshal(raw, &recorded); err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(askLab(t, program, raw)), "\n")
	if len(lines) != len(recorded) || len(lines) < 50 {
		t.Fatalf("%d answers to %d requests", len(lines), len(recorded))
	}
	for i, line := range lines {
		var got map[string]any
		if err := json.Unmarshal([]byte(line), &got); err != nil {
			t.Fatal(err)
		}
		if !reflect.DeepEqual(got, recorded[i]) {
			t.Errorf("%s: got %s\nrecorded %v", recorded[i]["name"], line, recorded[i])
		}
	}
	say("%s: %d answers are those recorded", program, len(lines))
}
