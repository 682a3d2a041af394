package policy_test

import (
	"os"
	"path/filepath"
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
}
