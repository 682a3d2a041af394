package real_test

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pdmesh/pdmesh/sim/fleet"
)

// python runs a program of the lab in its environment and returns its output.
func (r *rig) python(t *testing.T, program string, args ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, filepath.Join(lab.dir, "venv", "bin", "python"), append([]string{absolute(program)}, args...)...)
	cmd.Env = append([]string{"HOME=" + r.fleet.Dir(), "PATH=" + os.Getenv("PATH")}, lab.env...)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		t.Fatalf("%s: %v\n%s%s", program, err, out.String(), errs.String())
	}
	logf("%s", strings.TrimSpace(errs.String()))
	return out.String()
}

// TestClients runs the official Python clients and vLLM's load generator against the proxy.
func TestClients(t *testing.T) {
	if short() {
		t.Skip("not part of the short form")
	}
	r := newRig(t)
	alone := r.start(1)[1] // a decode engine that gets a direct request computes the prompt itself
	for _, program := range []string{"lab/openai_client.py", "lab/anthropic_client.py"} {
		t.Run(program, func(t *testing.T) {
			want := strings.Split(r.python(t, program, alone.url(), model), "\n")
			got := strings.Split(r.python(t, program, r.proxy.URL(), model), "\n")
			if len(got) != len(want) {
				t.Fatalf("%d results, want %d", len(got), len(want))
			}
			for i := range want {
				if got[i] != want[i] {
					t.Errorf("with the proxy %s\nvLLM's own %s", got[i], want[i])
				}
			}
		})
	}
	t.Run("vllm bench serve", r.bench)
}

// bench runs vllm bench serve against the proxy.
func (r *rig) bench(t *testing.T) {
	for _, backend := range [][2]string{{"openai", "/v1/completions"}, {"openai-chat", "/v1/chat/completions"}} {
		dir := t.TempDir()
		p, err := r.fleet.Start(t.Context(), fleet.Spec{
			Name: "bench-" + backend[0], Program: absolute("lab/bin/vllm"), Env: environment(),
			Args: []string{
				"bench", "serve", "--backend", backend[0], "--base-url", r.proxy.URL(), "--endpoint", backend[1],
				"--model", model, "--tokenizer", filepath.Join(lab.dir, "model"), "--dataset-name", "random", "--ignore-eos",
				"--random-input-len", "100", "--random-output-len", "20", "--num-prompts", "24", "--max-concurrency", "4",
				"--save-result", "--result-dir", dir, "--result-filename", "result.json",
			},
		})
		require.NoError(t, err)
		select {
		case <-p.Done():
		case <-t.Context().Done():
			t.Fatal("it does not exit")
		}
		var result struct {
			Completed, Failed int
			Output            int `json:"total_output_tokens"`
		}
		raw, err := os.ReadFile(filepath.Join(dir, "result.json"))
		if err == nil {
			err = json.Unmarshal(raw, &result)
		}
		if err != nil {
			t.Fatalf("%v\n%s", err, p.LogTail(40))
		}
		logf("vllm bench serve over %s: %d completed, %d failed", backend[1], result.Completed, result.Failed)
		if result.Completed != 24 || result.Failed != 0 || result.Output != 24*20 {
			t.Errorf("%s: %+v\n%s", backend[1], result, p.LogTail(40))
		}
	}
}
