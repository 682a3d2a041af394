package program

import (
	"bytes"
	"slices"
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
