package machine_test

import (
	"os"
	"runtime"
	"slices"
	"testing"

	"github.com/pdmesh/pdmesh/bench/machine"
	"github.com/pdmesh/pdmesh/sim/testkit/leak"
)

func TestMain(m *testing.M) { leak.Main(m) }

func TestRead(t *testing.T) {
	t.Parallel()
	me := []int{os.Getpid()}
	before, err := machine.Read(me)
	if runtime.GOOS != "linux" {
		if err == nil {
			t.Fatal("no error although nothing is known here")
		}
		return
	}
	if err != nil {
		t.Fatal(err)
	}
	if before.RSS < 1000 || before.Peak < before.RSS || before.Files < 3 {
		t.Errorf("this process uses %+v", before)
	}
	if err := machine.ResetPeak(me); err != nil {
		t.Error(err)
	}
	held := make([]byte, 64<<20)
	for i := range held {
		held[i] = byte(i)
	}
	after, err := machine.Read(me)
	if err != nil {
		t.Fatal(err)
	}
	if after.CPU <= before.CPU {
		t.Errorf("writing %d bytes took no time: %v s, then %v s", len(held), before.CPU, after.CPU)
	}
	if grown := after.Peak - before.RSS; grown < 32<<10 {
		t.Errorf("64 MiB more let the peak grow by %d KiB", grown)
	}
	runtime.KeepAlive(held)
	if _, err := machine.Read([]int{1 << 30}); err == nil {
		t.Error("a process that does not exist has no usage")
	}
}

func TestTree(t *testing.T) {
	t.Parallel()
	if tree := machine.Tree(os.Getpid()); tree[0] != os.Getpid() {
		t.Errorf("%v does not begin with this process", tree)
	}
	if runtime.GOOS == "linux" && !slices.Contains(machine.Tree(os.Getppid()), os.Getpid()) {
		t.Error("this process is none of its parent's descendants")
	}
}
