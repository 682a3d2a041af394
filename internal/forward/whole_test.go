package forward_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"testing/iotest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/internal/transport/upstream"
	"github.com/pdmesh/pdmesh/sim/fakevllm"
)

// unannounced answers the decode legs in turn with bodies without a Content-Length, like a server that sends
// chunks.
type unannounced struct {
	canned

	bodies []func() io.Reader
	asked  int
}

func (u *unannounced) Do(ctx context.Context, r *upstream.Request) (*upstream.Response, error) {
	if r.Instance.Role == instance.Prefill {
		return u.canned.Do(ctx, r)
	}
	body := u.bodies[min(u.asked, len(u.bodies)-1)]
	u.asked++
	return &upstream.Response{Status: http.StatusOK, Header: jsonHeader, Length: -1, Body: io.NopCloser(body())}, nil
}

// wholeHandler returns a handler with one prefill and two decode instances; up answers for them.
func wholeHandler(t *testing.T, up *unannounced) http.HandlerFunc {
	t.Helper()
	up.canned.prefill = []byte(plainAnswer)
	return benchHandler(t, up, "d:1", "d:2")
}

func askWhole(t *testing.T, h http.HandlerFunc, w http.ResponseWriter) {
	t.Helper()
	h(w, newRequest(t.Context(), t, http.MethodPost, completionsPath, strings.NewReader(`{"model":"m","prompt":"hello","max_tokens":4}`)))
}

// wholeAnswer returns an answer of n bytes that differ by position.
func wholeAnswer(n int) []byte {
	b := make([]byte, 0, n+16)
	for i := 0; len(b) < n; i += 16 {
		b = fmt.Appendf(b, "%015d,", i)
	}
	return b[:n]
}

// An answer without a Content-Length reaches the client unchanged and with its length, however it is split:
// the proxy holds it back to its end.
func TestAnswerOfUnknownLength(t *testing.T) {
	t.Parallel()
	const held = 1 << 20
	for _, n := range []int{1, 2, 4<<10 - 1, 4 << 10, 4<<10 + 1, 8 << 10, 100 << 10, 1<<19 + 1, held - 1, held, held + 1, 3 * held} {
		want := wholeAnswer(n)
		for name, cut := range map[string]func(io.Reader) io.Reader{
			"as it is":       func(r io.Reader) io.Reader { return r },
			"halves":         iotest.HalfReader,
			"end with bytes": iotest.DataErrReader,
		} {
			t.Run(fmt.Sprintf("%d %s", n, name), func(t *testing.T) {
				t.Parallel()
				h := wholeHandler(t, &unannounced{bodies: []func() io.Reader{func() io.Reader { return cut(bytes.NewReader(want)) }}})
				w := httptest.NewRecorder()
				askWhole(t, h, w)
				if w.Code != http.StatusOK || !bytes.Equal(w.Body.Bytes(), want) {
					t.Errorf("status %d, %d bytes of %d", w.Code, w.Body.Len(), n)
				}
				got := w.Header().Get("Content-Length")
				assert.Equal(t, strconv.Itoa(n), got, "Content-Length %q, want %d", got, n)
			})
		}
	}
}

// If an answer breaks off while it is held back, another instance answers.
func TestAnswerOfUnknownLength_Truncated(t *testing.T) {
	t.Parallel()
	want := wholeAnswer(100)
	for _, n := range []int{0, 1, 4 << 10, 4<<10 + 1, 100 << 10, 1<<20 - 1} {
		up := &unannounced{bodies: []func() io.Reader{
			func() io.Reader {
				return io.MultiReader(bytes.NewReader(wholeAnswer(n)), iotest.ErrReader(errors.New("connection lost")))
			},
			func() io.Reader { return bytes.NewReader(want) },
		}}
		w := httptest.NewRecorder()
		askWhole(t, wholeHandler(t, up), w)
		if up.asked != 2 || w.Code != http.StatusOK || !bytes.Equal(w.Body.Bytes(), want) {
			t.Errorf("after %d bytes: %d requests, status %d, %d bytes", n, up.asked, w.Code, w.Body.Len())
		}
	}
}

// A short answer takes memory for its own size, not for the largest possible one. This test is not parallel,
// since it counts all allocations.
func TestShortAnswer_MemoryOfOwnSize(t *testing.T) { //nolint:paralleltest // see above
	h := wholeHandler(t, &unannounced{bodies: []func() io.Reader{func() io.Reader { return bytes.NewReader(wholeAnswer(2 << 10)) }}})
	const requests = 64
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	for range requests {
		w := &sink{header: http.Header{}}
		askWhole(t, h, w)
		require.Equal(t, 2<<10, w.n, "bytes")
	}
	runtime.ReadMemStats(&after)
	each := (after.TotalAlloc - before.TotalAlloc) / requests
	assert.True(t, each <= 64<<10, "%d KiB for an answer of 2", each>>10)
}

// An engine that shuts down may answer with status 200 and nothing else. That is not an answer.
func TestEmptyAnswer(t *testing.T) {
	t.Parallel()
	var asked atomic.Int64
	r := start(t, fakevllm.Plain, 0, 1, nil)
	r.withEngine(handlerEngine(t, instance.Decode, func(http.ResponseWriter, *http.Request) { asked.Add(1) }), true)
	for range 20 {
		for _, stream := range []bool{false, true} {
			r.checkServed(scenario{chatPath, stream})
		}
	}
	assert.True(t, asked.Load() != 0, "the engine with empty answers was not asked")
}
