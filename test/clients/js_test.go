package clients_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pdmesh/pdmesh/sim/fakevllm"
)

// missing skips the test of the JavaScript client, or fails it if REQUIRE_NODE is set.
func missing(t *testing.T, format string, args ...any) {
	t.Helper()
	why := fmt.Sprintf(format, args...) + ": the JavaScript client is not tried (install node and run: cd test/clients/js && npm ci)"
	if os.Getenv("REQUIRE_NODE") != "" && os.Getenv("REQUIRE_NODE") != "0" {
		t.Fatal(why)
	}
	t.Skip(why)
}

// TestJavaScriptClient runs the suite of js/ against two fleets.
func TestJavaScriptClient(t *testing.T) {
	t.Parallel()
	node, err := exec.LookPath("node")
	if err != nil {
		missing(t, "there is no node")
	}
	if installed, want := installedJS(t), lockedJS(t); installed != want {
		missing(t, "openai %s is not installed (found %q)", want, installed)
	}
	r := start(t, setup{})
	keyed := start(t, setup{prefills: 1, decodes: 1, proxyArgs: []string{"--api-key", "sk-right"}})
	type answer struct {
		Text   string `json:"text"`
		Tokens int    `json:"tokens"`
		Prompt int    `json:"prompt"`
	}
	of := func(a fakevllm.Answer) answer { return answer{a.Text, len(a.Tokens), a.PromptTokens} }
	const question = "tell me \"of\" the sea\n"
	want, err := json.Marshal(map[string]any{
		"question":   question,
		"chat":       of(fakevllm.ExpectedChat([]fakevllm.Message{{Role: "user", Content: question}}, fakevllm.Sampling{MaxTokens: 200})),
		"completion": of(fakevllm.ExpectedText(question, fakevllm.Sampling{MaxTokens: 200})),
	})
	require.NoError(t, err)
	urls := func(list []*fakevllm.Server) string {
		var out []string
		for _, s := range list {
			out = append(out, s.URL())
		}
		return strings.Join(out, ",")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, node, "--test", "suite.test.mjs") //nolint:gosec // the machine's own node
	cmd.Dir = "js"
	cmd.Env = append(slices.DeleteFunc(os.Environ(), func(v string) bool { return strings.HasPrefix(v, "OPENAI_") }),
		"PROXY_URL="+r.URL, "KEYED_URL="+keyed.URL, "MODEL="+model, "EXPECTED="+string(want),
		"PREFILL_URLS="+urls(r.P), "DECODE_URLS="+urls(r.D))
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
	t.Logf("%s", firstLine(string(out), "openai "))
	r.strict()
	keyed.strict()
}

// firstLine returns the first line of a program's output that contains a text.
func firstLine(out, words string) string {
	for line := range strings.Lines(out) {
		if strings.Contains(line, words) {
			return strings.TrimSpace(strings.TrimLeft(line, "# "))
		}
	}
	return "nothing about " + words
}

// lockedJS returns the version of the client that the lock file pins.
func lockedJS(t *testing.T) string {
	t.Helper()
	return versionIn(t, filepath.Join("js", "package-lock.json"), func(raw []byte) (string, error) {
		var lock struct {
			Packages map[string]struct{ Version string }
		}
		err := json.Unmarshal(raw, &lock)
		return lock.Packages["node_modules/openai"].Version, err
	})
}

// installedJS returns the installed version, "" if there is none.
func installedJS(t *testing.T) string {
	t.Helper()
	file := filepath.Join("js", "node_modules", "openai", "package.json")
	if _, err := os.Stat(file); err != nil {
		return ""
	}
	return versionIn(t, file, func(raw []byte) (string, error) {
		var pack struct{ Version string }
		err := json.Unmarshal(raw, &pack)
		return pack.Version, err
	})
}

func versionIn(t *testing.T, file string, read func([]byte) (string, error)) string {
	t.Helper()
	raw, err := os.ReadFile(file) //nolint:gosec // a file of this directory
	require.NoError(t, err)
	v, err := read(raw)
	require.True(t, err == nil && v != "", "%s: version %q, %v", file, v, err)
	return v
}
