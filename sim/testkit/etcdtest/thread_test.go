package etcdtest_test

import (
	"runtime"
	"testing"

	"github.com/pdmesh/pdmesh/sim/testkit/etcdtest"
)

// A goroutine that ends with its thread locked ends the thread, and the kernel kills
// children that were started from it (PR_SET_PDEATHSIG). Members must survive this.
func TestMembersOutliveThreads(t *testing.T) {
	t.Parallel()
	var members []*etcdtest.Server
	for range 3 {
		members = append(members, etcdtest.Start(t))
	}
	done := make(chan struct{})
	// Each goroutine takes a thread and ends it. The threads include any that
	// started the members.
	for range 200 {
		go func() {
			runtime.LockOSThread() // never unlocked: the thread ends with this goroutine
			done <- struct{}{}
		}()
	}
	for range 200 {
		<-done
	}
	for _, m := range members {
		if _, err := m.Client(t).Put(t.Context(), "/k", "v"); err != nil {
			t.Errorf("the member at %s: %v", m.Endpoint(), err)
		}
	}
}
