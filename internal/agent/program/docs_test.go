package program

import (
	"bytes"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/pdmesh/pdmesh/sim/testkit"
)

// The agent accepts the commands of the connector and migration pages.
func TestConnectorPages_Commands(t *testing.T) {
	t.Parallel()
	calls := slices.Concat(testkit.ShellCalls(t, "../../../docs/connectors/*.md", "pdmesh-agent"), testkit.ShellCalls(t, "../../../docs/migrate/*.md", "pdmesh-agent"))
	assert.GreaterOrEqual(t, len(calls), 15, "only %d commands: %q", len(calls), calls)
	for _, args := range calls {
		var out bytes.Buffer
		code := run(t.Context(), slices.Concat([]string{"--print-config", "--host-id=h"}, args), &out, &out)
		assert.Equal(t, 0, code, "%q: exit %d\n%s", args, code, &out)
	}
}

func TestCompletion(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct{ args, want string }{
		{"completion bash", "complete -o default -F __start_pdmesh-agent pdmesh-agent"},
		{"completion zsh", "#compdef pdmesh-agent"},
		{"completion fish", "complete -c pdmesh-agent"},
		{"__complete dr", "drain\t"},
		{"__complete --kv-tr", "--kv-transfer-config\t"},
	} {
		var out, errs bytes.Buffer
		if code := run(t.Context(), strings.Fields(tc.args), &out, &errs); code != 0 || !strings.Contains(out.String(), tc.want) {
			t.Errorf("%s: exit %d, %q is not in\n%.2000s%s", tc.args, code, tc.want, &out, &errs)
		}
	}
}
