package ground_test

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pdmesh/pdmesh/bench/ground"
	"github.com/pdmesh/pdmesh/sim/testkit"
)

func TestReplacePart(t *testing.T) {
	t.Parallel()
	doc := filepath.Join(t.TempDir(), "page.md")
	const begin, end = "<!-- made by make fleet-real: begin -->\n", "<!-- made by make fleet-real: end -->\n"
	testkit.WriteFile(t, doc, "before\n"+begin+"old\n"+end+"after\n")
	require.NoError(t, ground.ReplacePart(doc, "fleet-real", "new\n"))
	assert.Equal(t, "before\n"+begin+"new\n"+end+"after\n", string(testkit.ReadFile(t, doc)))
	require.NoError(t, os.WriteFile(doc, []byte("no marks"), 0o600))
	if err := ground.ReplacePart(doc, "fleet-real", ""); !errors.Is(err, ground.ErrMarks) {
		t.Errorf("without marks: %v", err)
	}
}
