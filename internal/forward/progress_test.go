package forward_test

import (
	"context"
	"io"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/pdmesh/pdmesh/internal/forward"
	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/internal/transport/upstream"
	"github.com/pdmesh/pdmesh/sim/fakevllm"
)

// readingClient is an upstream client that reports when a decode leg waits for more bytes.
type readingClient struct {
	upstream.Client
	once    sync.Once
	waiting chan struct{} // closed when the header of a stream and the bytes that follow at once were read
}

func (c *readingClient) Do(ctx context.Context, r *upstream.Request) (*upstream.Response, error) {
	resp, err := c.Client.Do(ctx, r)
	if err == nil && r.Instance.Role == instance.Decode {
		resp.Body = &readingBody{resp.Body, c}
	}
	return resp, err
}

type readingBody struct {
	io.ReadCloser
	c *readingClient
}

func (b *readingBody) Read(p []byte) (int, error) {
	b.c.once.Do(func() { close(b.c.waiting) })
	return b.ReadCloser.Read(p)
}

// An engine's API server sends the header of a stream, and the first events of some APIs, even if its core
// hangs: they are no progress. Content and whole answers are.
func TestStreamHeader_NotProgress(t *testing.T) {
	t.Parallel()
	eachAPI(t, both(), func(t *testing.T, q scenario) {
		c := &readingClient{waiting: make(chan struct{})}
		r := start(t, fakevllm.NIXL, 1, 1, func(o *forward.Options) {
			c.Client = o.Upstream
			o.Upstream = c
		})
		k := key(instance.Decode, r.D[0])
		if q.stream {
			r.D[0].SetCore(fakevllm.CoreState{Hung: true})
		}
		done := async(func() answer { return r.postScenario(q) })
		if q.stream {
			select {
			case <-c.waiting:
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
