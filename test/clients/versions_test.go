package clients_test

import (
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/option"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// linked returns the version of the official Go client in this binary, from its User-Agent, because test
// binaries do not list their modules.
func linked(t *testing.T) string {
	t.Helper()
	agent := ""
	c := openai.NewClient(option.WithAPIKey("k"), option.WithMaxRetries(0), option.WithMiddleware(
		func(q *http.Request, _ option.MiddlewareNext) (*http.Response, error) {
			agent = q.UserAgent()
			return nil, errNotYet
		}))
	if _, err := c.Models.List(t.Context()); !errors.Is(err, errNotYet) {
		t.Fatal(err)
	}
	version, ok := strings.CutPrefix(agent, "OpenAI/Go ")
	require.True(t, ok, "its User-Agent is %q", agent)
	return version
}

// TestVersions checks that docs/clients.md names exactly the clients that are tested.
func TestVersions(t *testing.T) {
	t.Parallel()
	want := []string{
		"| openai for Go | " + linked(t) + " | the client |",
		"| openai for JavaScript | " + lockedJS(t) + " | the client, if node is installed |",
	}
	for _, r := range recordings(t) {
		want = append(want, "| "+r.tool+" | "+r.version+" | recording |")
	}
	for _, row := range want {
		t.Log(row)
	}
	raw, err := os.ReadFile(filepath.Join("..", "..", "docs", "clients.md"))
	require.NoError(t, err)
	_, table, ok := strings.Cut(string(raw), "| client | version | tested by |\n|---|---|---|\n")
	require.True(t, ok, "docs/clients.md has no table of clients")
	table, _, _ = strings.Cut(table, "\n\n")
	assert.Equal(t, want, strings.Split(table, "\n"),
		"the table of docs/clients.md is\n%s\nit should be\n%s", table, strings.Join(want, "\n"))
}

// TestLockFile checks that the lock file names no registry, so that it works with any.
func TestLockFile(t *testing.T) {
	t.Parallel()
	raw, err := os.ReadFile(filepath.Join("js", "package-lock.json"))
	require.NoError(t, err)
	for line := range strings.Lines(string(raw)) {
		assert.True(t, !strings.Contains(line, "://") && !strings.Contains(line, `"resolved"`),
			"it names a server: %s(install with the .npmrc in the same directory)", line)
	}
	assert.Contains(t, string(raw), `"integrity": "sha512-`, "it has no checksum")
}
