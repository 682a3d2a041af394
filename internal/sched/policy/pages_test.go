package policy_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/pdmesh/pdmesh/internal/sched/policy"
)

func read(t *testing.T, file string) string {
	t.Helper()
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// Every policy has a page that says when to use it, what it costs and what its knob is,
// and the page that helps to choose has it, and fits on a screen.
func TestEveryPolicyHasAPage(t *testing.T) {
	t.Parallel()
	docs := filepath.Join("..", "..", "..", "docs")
	which := read(t, filepath.Join(docs, "policies.md"))
	if n := strings.Count(which, "\n"); n > 40 {
		t.Errorf("policies.md has %d lines, which do not fit on a screen", n)
	}
	for _, name := range policy.Names() {
		page := read(t, filepath.Join(docs, "policies", name+".md"))
		for _, wanted := range []string{"# `" + name + "`\n", "\n## When to use it\n", "\n## What it costs\n", "\n## Its knob\n"} {
			if !strings.Contains(page, wanted) {
				t.Errorf("the page of %s lacks %q", name, wanted)
			}
		}
		if !strings.Contains(which, "(policies/"+name+".md)") || !strings.Contains(which, "\n| `"+name+"` |") {
			t.Errorf("policies.md does not tell of %s", name)
		}
	}
	pages, err := filepath.Glob(filepath.Join(docs, "policies", "*.md"))
	if err != nil || len(pages) != len(policy.Names()) {
		t.Errorf("%d pages of %d policies: %v", len(pages), len(policy.Names()), err)
	}
	for _, page := range append(pages, filepath.Join(docs, "policies.md"), filepath.Join(docs, "picking.md")) {
		links(t, page)
	}
}

// links fails for each link of a page to a file, or to a heading, that is not there.
func links(t *testing.T, page string) {
	t.Helper()
	for _, m := range regexp.MustCompile(`\]\(([^)]+)\)`).FindAllStringSubmatch(read(t, page), -1) {
		if strings.Contains(m[1], "://") {
			continue
		}
		file, heading, _ := strings.Cut(m[1], "#")
		there := page
		if file != "" {
			there = filepath.Join(filepath.Dir(page), file)
		}
		b, err := os.ReadFile(there)
		if err != nil {
			t.Errorf("%s: %s: %v", page, m[1], err)
			continue
		}
		if heading != "" && !headings(string(b))[heading] {
			t.Errorf("%s: %s: there is no such heading", page, m[1])
		}
	}
}

// headings of a page, as links name them.
func headings(page string) map[string]bool {
	out := map[string]bool{}
	for line := range strings.Lines(page) {
		if text, ok := strings.CutPrefix(strings.TrimLeft(line, "#"), " "); ok && strings.HasPrefix(line, "#") {
			text = strings.ToLower(strings.TrimSpace(text))
			out[strings.ReplaceAll(regexp.MustCompile(`[^a-z0-9 _-]`).ReplaceAllString(text, ""), " ", "-")] = true
		}
	}
	return out
}
