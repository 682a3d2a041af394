package forward_test

import (
	"context"
	"io"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/pdmesh/pdmesh/internal/fakevllm"
	"github.com/pdmesh/pdmesh/internal/forward"
	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/internal/sched"
	"github.com/pdmesh/pdmesh/internal/upstream"
)

// waits notes when something that a request waits for has come, and what time it
// tells the picks behind that.
type waits struct {
	forward.Picker
	upstream.Client

	mu   sync.Mutex
	came time.Time // the last of a prefill's answer
	late []instance.Role
}

func (w *waits) Pick(r sched.Request) (*sched.Assignment, error) {
	w.mu.Lock()
	if r.Now.IsZero() || r.Now.Before(w.came) {
		w.late = append(w.late, r.Role)
	}
	w.mu.Unlock()
	return w.Picker.Pick(r)
}

func (w *waits) Do(ctx context.Context, r *upstream.Request) (*upstream.Response, error) {
	resp, err := w.Client.Do(ctx, r)
	if err == nil && r.Instance.Role == instance.Prefill {
		resp.Body = &noted{resp.Body, w}
	}
	return resp, err
}

type noted struct {
	io.ReadCloser
	by *waits
}

func (n *noted) Read(p []byte) (int, error) {
	m, err := n.ReadCloser.Read(p)
	n.by.mu.Lock()
	n.by.came = time.Now()
	n.by.mu.Unlock()
	return m, err
}

// The time that a pick is told is from behind whatever was waited for: the process
// may have been suspended meanwhile, and must see that before it picks.
func TestPicksKnowTheTime(t *testing.T) {
	t.Parallel()
	w := &waits{}
	r := start(t, fakevllm.NIXL, 1, 1, func(o *forward.Options) {
		w.Picker, w.Client = o.Picker, o.Upstream
		o.Picker, o.Upstream = w, w
	})
	for _, stream := range []bool{false, true} {
		if a := r.post("/v1/chat/completions", chatBody(stream, "")); a.status != http.StatusOK {
			t.Fatalf("%d: %s", a.status, a.body)
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.came.IsZero() || len(w.late) > 0 {
		t.Errorf("picks with a time from before: %v", w.late)
	}
}
