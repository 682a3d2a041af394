// Package docs_test checks that a test runs every block of commands in README and docs, or that table_test.go
// has the reason why not. It also checks that links are valid.
package docs_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const root = "../.."

// block is one fenced block of a page.
type block struct {
	page, first, text string
	line              int
}

// pages returns all pages with commands that a reader may copy.
func pages(t *testing.T) (out []string) {
	t.Helper()
	for _, pattern := range []string{"*.md", "bench/*.md", "deploy/*.md"} {
		found, err := filepath.Glob(filepath.Join(root, pattern))
		require.NoError(t, err)
		out = append(out, found...)
	}
	err := filepath.WalkDir(filepath.Join(root, "docs"), func(path string, _ fs.DirEntry, err error) error {
		if filepath.Ext(path) == ".md" {
			out = append(out, path)
		}
		return err
	})
	require.NoError(t, err)
	return out
}

// blocks returns the fenced blocks of all pages.
func blocks(t *testing.T) (out []block) {
	t.Helper()
	for _, page := range pages(t) {
		raw, err := os.ReadFile(page)
		require.NoError(t, err)
		name := strings.TrimPrefix(filepath.ToSlash(page), root+"/")
		lines := strings.Split(string(raw), "\n")
		for i := 0; i < len(lines); i++ {
			mark := strings.TrimSpace(lines[i])
			if !strings.HasPrefix(mark, "```") {
				continue
			}
			begin := i + 1
			for i++; i < len(lines) && strings.TrimSpace(lines[i]) != "```"; i++ {
			}
			if i == len(lines) {
				t.Fatalf("%s:%d: unterminated block", name, begin)
			}
			// A block of another language contains no commands.
			if l := strings.TrimPrefix(mark, "```"); l != "" && l != "sh" && l != "console" && l != "bash" {
				continue
			}
			text := strings.Join(lines[begin:i], "\n")
			first, _, _ := strings.Cut(strings.TrimSpace(text), "\n")
			out = append(out, block{name, first, text, begin + 1})
		}
	}
	return out
}

// of returns the index of the row for a block, -1 if there is none.
func of(b block) int {
	return slices.IndexFunc(table, func(r row) bool {
		begins, has, _ := strings.Cut(r.first, " … ")
		return r.page == b.page && strings.HasPrefix(b.first, begins) && strings.Contains(b.text, has)
	})
}

// Every block has a row, and every row a block; the test named in a row exists.
func TestDocBlocks_EachHasRow(t *testing.T) {
	t.Parallel()
	used := make([]int, len(table))
	for _, b := range blocks(t) {
		i := of(b)
		if i < 0 {
			t.Errorf("%s:%d: table_test.go has no row for this block:\n%s", b.page, b.line, b.text)
			continue
		}
		used[i]++
	}
	for i, r := range table {
		if used[i] != 1 {
			t.Errorf("%s %q: %d blocks have this beginning", r.page, r.first, used[i])
		}
		ways := 0
		for _, w := range []string{r.world, r.by, r.why} {
			if w != "" {
				ways++
			}
		}
		if ways != 1 {
			t.Errorf("%s %q: want exactly one of world, by and why", r.page, r.first)
		}
		if r.by != "" && !exists(t, r.by) {
			t.Errorf("%s %q: there is no %s", r.page, r.first, r.by)
		}
	}
}

// exists reports whether a file, or the tests of a package, contain a text; by has the form "file: text".
func exists(t *testing.T, by string) bool {
	t.Helper()
	where, what, _ := strings.Cut(by, ": ")
	files := []string{filepath.Join(root, where)}
	if info, err := os.Stat(files[0]); err == nil && info.IsDir() {
		files, err = filepath.Glob(filepath.Join(root, where, "*_test.go"))
		require.NoError(t, err)
		what = "func " + what + "("
	}
	for _, f := range files {
		raw, err := os.ReadFile(f)
		if err == nil && strings.Contains(string(raw), what) {
			return true
		}
	}
	return false
}
