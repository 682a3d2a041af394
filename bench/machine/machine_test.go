package machine_test

import (
	"errors"
	"os"
	"runtime"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pdmesh/pdmesh/bench/machine"
	"github.com/pdmesh/pdmesh/sim/testkit/leak"
)

func TestMain(m *testing.M) { leak.Main(m) }

func TestUsage(t *testing.T) {
	t.Parallel()
	me := []int{os.Getpid()}
	cpu, err := machine.CPU(me)
	if runtime.GOOS != "linux" {
		require.True(t, errors.Is(err, machine.ErrUnknown), "error %v, want ErrUnknown", err)
		return
	}
	require.NoError(t, err)
	before, err := machine.Memory(me)
	require.True(t, err == nil && before >= 1000, "this process has %d KiB, %v", before, err)
	held := make([]byte, 64<<20)
	for i := range held {
		held[i] = byte(i)
	}
	after, err := machine.Memory(me)
	assert.True(t, err == nil && after-before >= 32<<10, "64 MiB more: from %d to %d KiB, %v", before, after, err)
	runtime.KeepAlive(held)
	if now, err := machine.CPU(me); err != nil || now <= cpu {
		t.Errorf("writing %d bytes took no time: %v s, then %v s, %v", len(held), cpu, now, err)
	}
	if busy, all, err := machine.Times(); err != nil || busy <= 0 || all < busy {
		t.Errorf("machine: %v of %v s busy, %v", busy, all, err)
	}
	if _, err := machine.CPU([]int{1 << 23}); err == nil {
		t.Error("a process that does not exist has processor time")
	}
}

func TestTree(t *testing.T) {
	t.Parallel()
	tree := machine.Tree(os.Getpid())
	assert.Equal(t, os.Getpid(), tree[0], "%v does not begin with this process", tree)
	assert.False(t, runtime.GOOS == "linux" && !slices.Contains(machine.Tree(os.Getppid()), os.Getpid()),
		"this process is not a descendant of its parent")
}
