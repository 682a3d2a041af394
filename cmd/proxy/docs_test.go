package main

import (
	"bytes"
	"slices"
	"testing"

	"github.com/pdmesh/pdmesh/internal/testkit"
)

// What the pages of the connectors tell to type is taken.
func TestCommandsOfTheConnectorPages(t *testing.T) {
	t.Parallel()
	calls := testkit.ShellCalls(t, "../../docs/connectors/*.md", "proxy")
	if len(calls) < 2 {
		t.Errorf("only %d commands: %q", len(calls), calls)
	}
	for _, args := range calls {
		var out bytes.Buffer
		home := func(name string) (string, bool) { return t.TempDir(), name == "HOME" }
		if code := run(t.Context(), slices.Concat([]string{"--print-config"}, args), home, &out, &out); code != 0 {
			t.Errorf("%q: exit %d\n%s", args, code, &out)
		}
	}
}
