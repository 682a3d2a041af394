package forward_test

import (
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/pdmesh/pdmesh/internal/forward"
	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/sim/fakevllm"
)

// An engine's API server sends the header of a stream, and the first events of some APIs, even if its core
// hangs: they are no progress. Content and whole answers are.
func TestStreamHeader_NotProgress(t *testing.T) {
	t.Parallel()
	eachAPI(t, both(), func(t *testing.T, q scenario) {
		waiting := make(chan struct{}) // closed when the leg waits for the bytes after the header
		r := start(t, fakevllm.NIXL, 1, 1, func(o *forward.Options) {
			o.Upstream = &hookedClient{Client: o.Upstream, role: instance.Decode, before: sync.OnceFunc(func() { close(waiting) })}
		})
		k := key(instance.Decode, r.D[0])
		if q.stream {
			r.D[0].SetCore(fakevllm.CoreState{Hung: true})
		}
		done := async(func() answer { return r.postScenario(q) })
		if q.stream {
			select {
			case <-waiting:
			case a := <-done:
				t.Fatalf("answered by a core that hangs: %+v", a)
			}
			n := r.sched.Loads.Progress(k)
			assert.True(t, n == 0, "a core that hangs has made progress %d times", n)
			r.D[0].SetCore(fakevllm.CoreState{})
		}
		r.checkWhole(q, <-done)
		if n := r.sched.Loads.Progress(k); n == 0 {
			t.Error("an answer is no progress")
		}
		r.checkEngines()
	})
}
