package policy

import (
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pdmesh/pdmesh/sim/testkit"
)

func read(t *testing.T, file string) string {
	t.Helper()
	b, err := os.ReadFile(file)
	require.NoError(t, err)
	return string(b)
}

// Every policy has a page with the same sections. The overview lists every policy, and fits on a screen.
func TestPolicies_Documented(t *testing.T) {
	t.Parallel()
	docs := filepath.Join("..", "..", "..", "docs")
	which := read(t, filepath.Join(docs, "policies.md"))
	n := strings.Count(which, "\n")
	assert.LessOrEqual(t, n, 40, "policies.md has %d lines, which do not fit on a screen", n)
	for _, name := range Names() {
		page := read(t, filepath.Join(docs, "policies", name+".md"))
		testkit.Contains(t, page, "# `"+name+"`\n", "\n## When to use it\n", "\n## Cost\n", "\n## Settings\n", "\n## Scores\n")
		assert.True(t, strings.Contains(which, "(policies/"+name+".md)") && strings.Contains(which, "\n| `"+name+"` |"),
			"policies.md does not mention %s", name)
	}
	pages, err := filepath.Glob(filepath.Join(docs, "policies", "*.md"))
	assert.True(t, err == nil && len(pages) == len(Names()),
		"%d pages of %d policies: %v", len(pages), len(Names()), err)
}

// Every score in a policy's explanation is on its page.
func TestScores_Documented(t *testing.T) {
	t.Parallel()
	for _, k := range kinds() {
		h, names := newHistory(t, k), map[string]bool{}
		for range 60 {
			c, r := h.next()
			r.Explanation = new(Explanation)
			h.choose(c, r)
			for _, scores := range r.Explanation.scores {
				for _, s := range scores {
					names[s.Name] = true
				}
			}
		}
		_, section, _ := strings.Cut(read(t, filepath.Join("..", "..", "..", "docs", "policies", k.Name+".md")), "\n## Scores\n")
		section, _, _ = strings.Cut(section, "\n## ")
		for _, name := range slices.Sorted(maps.Keys(names)) {
			assert.Contains(t, section, "`"+name+"`",
				"the page of %s does not explain its score %s", k.Name, name)
		}
	}
}
