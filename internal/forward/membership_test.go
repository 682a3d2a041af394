package forward_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/pdmesh/pdmesh/internal/forward"
	"github.com/pdmesh/pdmesh/internal/forward/relay"
	"github.com/pdmesh/pdmesh/sim/fakevllm"
)

// A request that waits for the membership ends when its client leaves.
func TestClientLeaves_BeforePick(t *testing.T) {
	t.Parallel()
	for _, path := range []string{"/v1/completions", "/tokenize"} {
		waiting := make(chan struct{})
		r := start(t, fakevllm.NIXL, 1, 1, func(o *forward.Options) {
			o.AwaitMembership = func(ctx context.Context) {
				close(waiting)
				<-ctx.Done()
			}
		})
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		done := async(func() answer { return r.postCtx(ctx, path, `{"model":"m","prompt":"a","max_tokens":3}`) })
		<-waiting
		cancel()
		<-done
		e := r.entry()
		assert.True(t, e.Outcome == relay.OutcomeClientGone && e.Failed == 0, "%s: %+v", path, e)
		for _, s := range append(r.P, r.D...) {
			q := s.Requests()
			assert.Empty(t, q, "%s: an engine got %d requests", path, len(q))
		}
	}
}
