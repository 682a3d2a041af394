package etcdtest_test

import (
	"runtime"
	"testing"

	"github.com/pdmesh/pdmesh/sim/testkit/etcdtest"
)

// A member outlives the threads of the test process: goroutines elsewhere that
// end with their thread locked take it down, and with it what was started there.
func TestMembersOutliveThreads(t *testing.T) {
	t.Parallel()
	var members []*etcdtest.Server
	for range 3 {
		members = append(members, etcdtest.Start(t))
	}
	done := make(chan struct{})
	// Each takes a thread of its own and ends it, those that started the members
	// among them.
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
