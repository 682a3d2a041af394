package docs_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

var (
	target      = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	notInAnchor = regexp.MustCompile(`[^\p{L}\p{N} _-]`)
)

// Every link of a page leads to an existing file, and to a heading in it.
func TestLinks(t *testing.T) {
	t.Parallel()
	known := map[string]map[string]bool{} // headings by file
	for _, page := range pages(t) {
		raw, err := os.ReadFile(page)
		require.NoError(t, err)
		for _, m := range target.FindAllStringSubmatch(string(raw), -1) {
			file, heading, _ := strings.Cut(m[1], "#")
			if strings.Contains(file, ":") {
				continue // external link
			}
			there := page
			if file != "" {
				there = filepath.Join(filepath.Dir(page), file)
			}
			if known[there] == nil {
				b, err := os.ReadFile(there)
				if info, statErr := os.Stat(there); err != nil && (statErr != nil || !info.IsDir()) {
					t.Errorf("%s: %s: %v", page, m[1], err)
					continue
				}
				known[there] = headings(string(b))
			}
			if heading != "" && !known[there][heading] {
				t.Errorf("%s: %s: there is no such heading", page, m[1])
			}
		}
	}
}

// headings returns the headings of a page as links write them.
func headings(page string) map[string]bool {
	out := map[string]bool{}
	for line := range strings.Lines(page) {
		if text, ok := strings.CutPrefix(strings.TrimLeft(line, "#"), " "); ok && strings.HasPrefix(line, "#") {
			text = strings.ToLower(strings.TrimSpace(text))
			out[strings.ReplaceAll(notInAnchor.ReplaceAllString(text, ""), " ", "-")] = true
		}
	}
	return out
}
