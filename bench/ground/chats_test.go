package ground_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pdmesh/pdmesh/bench/ground"
	"github.com/pdmesh/pdmesh/sim/testkit/require"
)

func TestChats_Save(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	doc := filepath.Join(dir, "page.md")
	const begin, end = "<!-- made by make fleet-real: begin -->\n", "<!-- made by make fleet-real: end -->\n"
	write := func(text string) {
		t.Helper()
		require.NoError(t, os.WriteFile(doc, []byte(text), 0o600))
	}
	read := func() string {
		t.Helper()
		b, err := os.ReadFile(doc)
		require.NoError(t, err)
		return string(b)
	}
	write("before\n" + begin + end + "after\n")
	require.NoError(t, os.Mkdir(filepath.Join(dir, "page"), 0o700))
	c := ground.Chats{Engine: "vLLM 0.32.0", Prefill: 2, Decode: 1, Rows: []ground.ChatsRow{{Policy: "prefix", Asked: 1000, Possible: 800, Expected: 790, Found: 760, Moved: 1}}}
	require.NoError(t, c.Save(doc))
	want := read()
	if !strings.Contains(want, "| prefix | 1000 | 800 | 790 | 760 | 95.0 | 1 |\n") || !strings.HasPrefix(want, "before\n") || !strings.HasSuffix(want, "after\n") {
		t.Fatal(want)
	}
	write("no marks")
	if err := c.Save(doc); !errors.Is(err, ground.ErrMarks) {
		t.Errorf("without marks: %v", err)
	}
}
