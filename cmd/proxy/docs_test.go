package main

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/pdmesh/pdmesh/sim/testkit"
)

// The proxy accepts the commands of the connector pages.
func TestConnectorPages_Commands(t *testing.T) {
	t.Parallel()
	taken(t, "../../docs/connectors/*.md", 2)
}

// The proxy accepts the commands of the migration pages.
func TestMigrationPages_Commands(t *testing.T) {
	t.Setenv("model_name", "Qwen/Qwen2.5-7B-Instruct")
	for i := range 4 {
		t.Setenv(fmt.Sprintf("host%d_IP", i+1), fmt.Sprint("10.0.0.", i+1))
	}
	taken(t, "../../docs/migrate/*.md", 11)
}

// taken checks that the proxy accepts every command of pages, at least least of them.
func taken(t *testing.T, pages string, least int) {
	t.Helper()
	calls := testkit.ShellCalls(t, pages, "pdmesh-proxy")
	if len(calls) < least {
		t.Errorf("only %d commands: %q", len(calls), calls)
	}
	for _, args := range calls {
		var out bytes.Buffer
		home := func(name string) (string, bool) { return t.TempDir(), name == "HOME" }
		if code := run(t.Context(), slices.Concat([]string{"--print-config"}, args), home, &out, &out); code != 0 {
			t.Errorf("%q: exit %d\n%s", args, code, &out)
		}
		if i := slices.Index(args, "--zmq-register"); i >= 0 && !strings.Contains(out.String(), ":36367") {
			t.Errorf("%q: the port is not that of the pages\n%s", args, &out)
		}
	}
}
