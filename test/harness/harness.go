// Package harness is shared by the tests of whole programs: it builds the programs, runs fleets of
// them, and sends load whose every response is checked.
package harness

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pdmesh/pdmesh/sim/fakevllm"
	"github.com/pdmesh/pdmesh/sim/fleet"
	"github.com/pdmesh/pdmesh/sim/loadgen"
	"github.com/pdmesh/pdmesh/sim/testkit/leak"
)

// Model is the model that the engines of the tests serve.
const Model = "e2e/simulated"

// Main builds the programs, stores their directory in *bin, runs the tests of a package, checks for
// leaked goroutines and returns the exit code. PD_TEST_BIN names a directory with programs that are
// already built: make test builds them once for all packages. The package must be two directories below
// the module's root.
func Main(m *testing.M, bin *string) int {
	code, err := buildAndRun(m, bin)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return code
}

func buildAndRun(m *testing.M, bin *string) (int, error) {
	if *bin = os.Getenv("PD_TEST_BIN"); *bin != "" {
		return runAndLook(m)
	}
	dir, err := os.MkdirTemp("", "pdmesh-test-")
	if err != nil {
		return 1, err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	if err := Build(dir); err != nil {
		return 1, err
	}
	*bin = dir
	return runAndLook(m)
}

func runAndLook(m *testing.M) (int, error) {
	code := m.Run()
	if code == 0 {
		if err := leak.Find(); err != nil {
			return 1, err
		}
	}
	return code, nil
}

// Build builds the programs into a directory, with the links that make build creates. The calling package must be two directories below the
// module's root.
func Build(dir string) error {
	build := exec.Command("sh", "-c", `go build -o "$0/" ./cmd/... && scripts/long-names.sh "$0"`, dir)
	build.Dir = filepath.Join("..", "..") // tests run in their package's directory
	build.Env = append(build.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		return fmt.Errorf("build the programs: %w\n%s", err, out)
	}
	return nil
}

// NewFleet creates a fleet whose processes are killed at the end of the test; if the test failed, the
// ends of their logs are printed. PD_TEST_UPSTREAM sets the HTTP client of its proxies.
func NewFleet(t testing.TB, bin string) *fleet.Fleet {
	t.Helper()
	o := fleet.Options{BinDir: bin, ReadyTimeout: 60 * time.Second} // t.TempDir() can be too long for sockets
	if kind := os.Getenv("PD_TEST_UPSTREAM"); kind != "" {
		o.ProxyEnv = []string{"PD_UPSTREAM=" + kind}
	}
	f, err := fleet.New(o)
	require.NoError(t, err)
	t.Cleanup(func() {
		for _, p := range f.Running() {
			if t.Failed() {
				t.Logf("%s:\n%s", p.Name(), p.LogTail(30))
			}
		}
		assert.NoError(t, f.Abandon(), "end of the fleet")
	})
	return f
}

// NewClient creates a client that requests the trace headers.
func NewClient(t testing.TB, adminKey string) *loadgen.Client {
	t.Helper()
	c := loadgen.NewClient(16, http.Header{"X-Pd-Trace": {"1"}, "X-Api-Key": {adminKey}})
	t.Cleanup(c.Close)
	return c
}

// Complete streams one completion and checks the whole response.
func Complete(ctx context.Context, c *loadgen.Client, url, prompt string, tokens int) loadgen.Result {
	return completeOf(ctx, c, Model, url, prompt, tokens)
}

// CompleteSeen is Complete and calls text with every text that arrives.
func CompleteSeen(ctx context.Context, c *loadgen.Client, url, prompt string, tokens int, text func([]byte)) loadgen.Result {
	return observe(ctx, c, Model, url, prompt, tokens, loadgen.Observer{Text: text})
}

func completeOf(ctx context.Context, c *loadgen.Client, model, url, prompt string, tokens int) loadgen.Result {
	return observe(ctx, c, model, url, prompt, tokens, loadgen.Observer{})
}

func observe(ctx context.Context, c *loadgen.Client, model, url, prompt string, tokens int, o loadgen.Observer) loadgen.Result {
	body := fmt.Appendf(nil, `{"model":%q,"prompt":%q,"max_tokens":%d,"ignore_eos":true,"stream":true,"stream_options":{"include_usage":true}}`, model, prompt, tokens)
	a := fakevllm.ExpectedText(prompt, fakevllm.Sampling{MaxTokens: tokens, IgnoreEOS: true})
	ctx, cancel := context.WithTimeout(ctx, 60*time.Second)
	defer cancel()
	return c.Stream(ctx, url+"/v1/completions", nil, body, loadgen.Expected{
		Text: []byte(a.Text), PromptTokens: a.PromptTokens, CompletionTokens: len(a.Tokens), FinishReason: a.FinishReason,
	}, o)
}
