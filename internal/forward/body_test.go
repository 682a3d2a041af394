package forward_test

import (
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pdmesh/pdmesh/internal/forward"
	"github.com/pdmesh/pdmesh/internal/openai"
	"github.com/pdmesh/pdmesh/sim/fakevllm"
	"github.com/pdmesh/pdmesh/sim/testkit/longform"
)

// The next request reuses the memory of a body. No engine may get bytes of another request, even if legs fail
// with their body half sent. The simulator's answer depends on the whole prompt, so one wrong byte changes
// the text.
func TestBodies_MemoryReuse(t *testing.T) {
	t.Parallel()
	for _, mode := range sequentialModes() {
		t.Run(string(mode), func(t *testing.T) {
			t.Parallel()
			r := start(t, mode, 3, 3, func(o *forward.Options) { o.MaxAttempts, o.RetryRatio = 50, -1 })
			for i, s := range append(append([]*fakevllm.Server{}, r.P...), r.D...) {
				seed := uint64(i + 1)
				script(t, s, fakevllm.Fault{Kind: fakevllm.FaultStatus, Status: 503, Probability: 0.1, Seed: seed, At: fakevllm.BeforeRead})
				script(t, s, fakevllm.Fault{Kind: fakevllm.FaultReset, Probability: 0.1, Seed: seed, At: fakevllm.BeforeRead})
			}
			var clients sync.WaitGroup
			for c := range 6 {
				clients.Go(func() {
					rnd := rand.New(rand.NewPCG(7, uint64(c)))
					for i := range longform.Count(2, 12) {
						word := fmt.Sprintf("w%d-%d ", c, i)
						n := 1 << (10 + rnd.IntN(10)) // 1 KiB to 512 KiB
						body := fmt.Sprintf(`{"model":"m","prompt":"%s","max_tokens":4,"stream":%v}`,
							strings.Repeat(word, n/len(word)), i%2 == 0)
						post := r.postUnannounced
						if i%3 > 0 {
							post = func(path, body string) answer { return r.post(path, body) }
						}
						r.checkComplete(post("/v1/completions", body), false, body)
					}
				})
			}
			clients.Wait()
			r.checkEngines()
		})
	}
}

// slowLink is a client on a link that transfers bytesInTime until its read deadline.
type slowLink struct {
	sink

	body     io.Reader
	left     int // bytes until the deadline
	renewals int
}

const bytesInTime = 512 << 10

func (l *slowLink) SetReadDeadline(t time.Time) error {
	if !t.IsZero() {
		l.left, l.renewals = bytesInTime, l.renewals+1
	}
	return nil
}

func (l *slowLink) Read(p []byte) (int, error) {
	if l.left <= 0 {
		return 0, fmt.Errorf("read: %w", os.ErrDeadlineExceeded)
	}
	n, err := l.body.Read(p[:min(len(p), 1<<10)])
	l.left -= n
	return n, err
}

// The time limit of a body does not end an upload that makes progress, and a single byte does not extend it.
func TestSlowUpload(t *testing.T) {
	t.Parallel()
	body := longBody(2<<20, false)
	size := int64(len(body))
	r := start(t, fakevllm.NIXL, 1, 1, func(*forward.Options) {})
	for _, length := range []int64{size, -1} {
		l := &slowLink{sink: sink{header: http.Header{}}, body: strings.NewReader(body)}
		q := newRequest(t.Context(), t, http.MethodPost, completionsPath, l)
		q.ContentLength = length
		r.handler.Completion(openai.Completion)(l, q)
		if e := r.entry(); l.failed || e.BytesIn != size || l.renewals > 1+4*len(body)/bytesInTime {
			t.Errorf("length %d: status %d, %d bytes, %d renewals", length, e.Status, e.BytesIn, l.renewals)
		}
	}
}
