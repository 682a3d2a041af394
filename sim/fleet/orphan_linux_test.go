package fleet_test

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pdmesh/pdmesh/sim/fleet"
	"github.com/pdmesh/pdmesh/sim/testkit"
)

// The children of a killed parent, which cannot clean up, end too.
func TestChildren_KilledWithParent(t *testing.T) {
	t.Parallel()
	f := newFleet(t, fleet.Options{})
	parent, err := f.Start(t.Context(), spec("parent", "parent:"+t.TempDir()))
	require.NoError(t, err)
	var pid int
	testkit.Eventually(t, 20*time.Second, func() error {
		_, err := fmt.Sscanf(parent.LogTail(1), "grandchild %d", &pid)
		return err
	})
	require.NoError(t, alive(pid), "the grandchild does not run")
	require.NoError(t, parent.Kill())
	testkit.Eventually(t, 20*time.Second, func() error {
		if alive(pid) == nil {
			return fmt.Errorf("process %d still runs", pid)
		}
		return nil
	})
}

// alive returns an error if a process does not run. A zombie does not.
func alive(pid int) error {
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return err
	}
	_, state, _ := strings.Cut(string(raw), ") ")
	if strings.HasPrefix(state, "Z") || strings.HasPrefix(state, "X") {
		return fmt.Errorf("process %d is in state %s", pid, state[:1])
	}
	return nil
}
