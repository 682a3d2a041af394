// Package e2e_test runs the built programs as processes, the way people do.
package e2e_test

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/pdmesh/pdmesh/internal/fakevllm"
	"github.com/pdmesh/pdmesh/internal/fleet"
	"github.com/pdmesh/pdmesh/internal/loadgen"
	"github.com/pdmesh/pdmesh/internal/testkit"
)

const model = "e2e/simulated"

// binDir holds the programs; TestMain builds them once for all tests.
var binDir string

func TestMain(m *testing.M) {
	testkit.MaybeRunEtcd()
	code, err := buildAndRun(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

func buildAndRun(m *testing.M) (int, error) {
	dir, err := os.MkdirTemp("", "pdmesh-e2e-")
	if err != nil {
		return 1, err
	}
	defer os.RemoveAll(dir)
	build := exec.Command("go", "build", "-o", dir+string(filepath.Separator), "./cmd/...")
	build.Dir = filepath.Join("..", "..")
	build.Env = append(build.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		return 1, fmt.Errorf("build the programs: %w\n%s", err, out)
	}
	binDir = dir
	code := m.Run()
	if code == 0 {
		if err := goleak.Find(); err != nil {
			return 1, err
		}
	}
	return code, nil
}

// newFleet makes a fleet whose processes are gone at the end of the test; when
// the test failed their last lines are shown.
func newFleet(t *testing.T) *fleet.Fleet {
	t.Helper()
	f, err := fleet.New(fleet.Options{BinDir: binDir, Dir: t.TempDir(), ReadyTimeout: 60 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for _, p := range f.Running() {
			if t.Failed() {
				t.Logf("%s:\n%s", p.Name(), p.LogTail(30))
			}
		}
		if err := f.Abandon(); err != nil {
			t.Errorf("end of the fleet: %v", err)
		}
	})
	return f
}

func newClient(t *testing.T, adminKey string) *loadgen.Client {
	t.Helper()
	c := loadgen.NewClient(16, http.Header{"X-Pd-Trace": {"1"}, "X-Api-Key": {adminKey}})
	t.Cleanup(c.Close)
	return c
}

// complete streams one completion and checks the whole answer.
func complete(ctx context.Context, c *loadgen.Client, url, prompt string, tokens int) loadgen.Result {
	body := fmt.Appendf(nil, `{"model":%q,"prompt":%q,"max_tokens":%d,"ignore_eos":true,"stream":true,"stream_options":{"include_usage":true}}`, model, prompt, tokens)
	a := fakevllm.ExpectedText(prompt, fakevllm.Sampling{MaxTokens: tokens, IgnoreEOS: true})
	ctx, cancel := context.WithTimeout(ctx, 60*time.Second)
	defer cancel()
	return c.Stream(ctx, url+"/v1/completions", body, loadgen.Expected{
		Text: []byte(a.Text), PromptTokens: a.PromptTokens, CompletionTokens: len(a.Tokens), FinishReason: a.FinishReason,
	}, loadgen.Observer{})
}
