package bypass_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pdmesh/pdmesh/internal/forward/bypass"
)

// names returns the names of Reasons.
func names() (list []string) {
	for _, r := range bypass.Reasons() {
		list = append(list, r.Name)
	}
	slices.Sort(list)
	return list
}

// TestReasons_Documented compares the reasons with those on the page for operators.
func TestReasons_Documented(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../../docs/api.md")
	require.NoError(t, err)
	_, section, _ := strings.Cut(string(page), "| reason | when |\n")
	table, _, _ := strings.Cut(section, "\n\n")
	var documented []string
	for line := range strings.Lines(table) {
		cells := strings.Split(line, "|")
		require.GreaterOrEqual(t, len(cells), 3, "no row: %q", line)
		for _, m := range regexp.MustCompile("`([a-z_]+)`").FindAllStringSubmatch(cells[1], -1) {
			documented = append(documented, m[1])
		}
	}
	slices.Sort(documented)
	assert.True(t, slices.Equal(documented, names()), "docs/api.md has %v\nthe code has %v", documented, names())
}

// TestReasons_Used checks that every constant is in Reasons and is used.
func TestReasons_Used(t *testing.T) {
	t.Parallel()
	file, err := parser.ParseFile(token.NewFileSet(), "bypass.go", nil, 0)
	require.NoError(t, err)
	constants := map[string]string{}
	ast.Inspect(file, func(n ast.Node) bool {
		if v, ok := n.(*ast.ValueSpec); ok {
			text, err := strconv.Unquote(v.Values[0].(*ast.BasicLit).Value)
			assert.NoError(t, err)
			constants[v.Names[0].Name] = text
		}
		return true
	})
	use, used := regexp.MustCompile(`bypass\.(\w+)`), map[string]bool{}
	err = filepath.WalkDir("../..", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return err
		}
		b, err := os.ReadFile(path)
		for _, m := range use.FindAllSubmatch(b, -1) {
			used[string(m[1])] = true
		}
		return err
	})
	require.NoError(t, err)
	var values []string
	for name, value := range constants {
		values = append(values, value)
		assert.True(t, used[name], "reason %s is unused", name)
	}
	slices.Sort(values)
	assert.True(t, slices.Equal(values, names()), "constants %v\nreasons %v", values, names())
}

func TestText(t *testing.T) {
	t.Parallel()
	assert.True(t, bypass.Text(bypass.NoPrefill) != bypass.NoPrefill && bypass.Text("x") == "x",
		"%v", bypass.Text(bypass.NoPrefill))
}
