package harness

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/pdmesh/pdmesh/internal/cli/sleep"
	"github.com/pdmesh/pdmesh/sim/fakevllm"
	"github.com/pdmesh/pdmesh/sim/loadgen"
	"github.com/pdmesh/pdmesh/sim/testkit"
)

// Load is a set of clients, each of which sends one request after the other until it is stopped. Half
// of the clients stream. Every response is checked.
type Load struct {
	t      testing.TB
	model  string
	pause  time.Duration
	client *loadgen.Client
	plain  *http.Client
	stop   context.CancelFunc
	wg     sync.WaitGroup

	// retrying clients resend a request to the next proxy when its connection is refused or lost, as
	// the official clients do.
	retrying     bool
	refused, cut atomic.Int64
	turns        []atomic.Int64 // by client: number of finished requests, successful or not
	ok, broken   atomic.Int64
	mu           sync.Mutex // guards failures and slowest
	failures     []string
	slowest      time.Duration
}

// StartLoad starts a load; Finish stops it. Each client sends its requests to the given proxies in turn,
// with a pause before each.
func StartLoad(t testing.TB, clients int, pause time.Duration, urls ...string) *Load {
	t.Helper()
	return startLoad(t, &Load{model: Model}, clients, pause, urls)
}

// StartRetryingLoad is StartLoad with clients that try the next proxy when a connection is refused, or
// lost before the first byte of a response, as happens when a proxy closes an idle connection while a
// request is on its way. Refused and Cut count these. An error response from a proxy is a failure, as
// without retries.
func StartRetryingLoad(t testing.TB, model string, clients int, pause time.Duration, urls ...string) *Load {
	t.Helper()
	return startLoad(t, &Load{model: model, retrying: true}, clients, pause, urls)
}

func startLoad(t testing.TB, l *Load, clients int, pause time.Duration, urls []string) *Load {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	l.t, l.pause, l.stop, l.client = t, pause, cancel, loadgen.NewClient(clients, nil)
	l.turns = make([]atomic.Int64, clients)
	l.plain = &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: clients}, Timeout: time.Minute}
	for c := range clients {
		l.wg.Go(func() {
			for i := 0; sleep.For(ctx, l.pause); i++ {
				prompt := fmt.Sprintf("client %d says line %d of many", c, i)
				for try := 0; ; try++ {
					url := urls[(c+i+try)%len(urls)]
					send := l.whole
					if c%2 == 0 {
						send = l.stream
					}
					if !send(url, prompt, try < retries) {
						break
					}
				}
				l.turns[c].Add(1)
			}
		})
	}
	t.Cleanup(l.Finish)
	return l
}

// LoadTokens is the number of tokens that each request of a Load generates.
const LoadTokens = 24

// retries is the maximum number of retries of one request.
const retries = 8

// retryable counts an error that a retrying client tolerates, and reports whether to retry.
func (l *Load) retryable(err error, more bool) bool {
	switch {
	case !l.retrying || !more:
		return false
	case errors.Is(err, syscall.ECONNREFUSED):
		l.refused.Add(1)
	case errors.Is(err, syscall.ECONNRESET), errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, syscall.EPIPE),
		strings.HasSuffix(err.Error(), "server closed idle connection"): // net/http exports no error value for it
		l.cut.Add(1)
	default:
		return false
	}
	return true
}

// stream sends a streaming request and reports whether to retry it. A response that is cut after its
// first text was committed and may visibly break.
func (l *Load) stream(url, prompt string, more bool) (retry bool) {
	r := completeOf(context.WithoutCancel(l.t.Context()), l.client, l.model, url, prompt, LoadTokens)
	switch {
	case r.Err == nil:
		l.ok.Add(1)
		l.mu.Lock()
		l.slowest = max(l.slowest, r.TTFT)
		l.mu.Unlock()
	case r.Header == nil && l.retryable(r.Err, more):
		return true
	case r.TTFT > 0 && !errors.Is(r.Err, loadgen.ErrWrong):
		l.broken.Add(1)
	default:
		l.fail("stream: %v (first text after %s)", r.Err, r.TTFT)
	}
	return false
}

// whole is stream for a request that does not stream.
func (l *Load) whole(url, prompt string, more bool) (retry bool) {
	body := fmt.Sprintf(`{"model":%q,"prompt":%q,"max_tokens":%d,"ignore_eos":true}`, l.model, prompt, LoadTokens)
	resp, err := l.plain.Post(url+"/v1/completions", "application/json", strings.NewReader(body)) //nolint:noctx // has a timeout
	if err != nil {
		if l.retryable(err, more) {
			return true
		}
		l.fail("whole: %v", err)
		return false
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil && l.retrying { // the response had started, as with a stream
		l.broken.Add(1)
		return false
	}
	if err != nil || resp.StatusCode != http.StatusOK {
		l.fail("whole: status %d, %v: %.300s", resp.StatusCode, err, b)
		return false
	}
	var answer struct{ Choices []struct{ Text string } }
	if err := json.Unmarshal(b, &answer); err != nil || len(answer.Choices) != 1 {
		l.fail("whole: %v: %.300s", err, b)
		return false
	}
	want := fakevllm.ExpectedText(prompt, fakevllm.Sampling{MaxTokens: LoadTokens, IgnoreEOS: true}).Text
	if answer.Choices[0].Text != want {
		l.fail("whole: wrong answer")
		return false
	}
	l.ok.Add(1)
	return false
}

func (l *Load) fail(format string, args ...any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.failures = append(l.failures, fmt.Sprintf(format, args...))
}

// Served waits until n more requests have been answered correctly.
func (l *Load) Served(n int64) {
	l.t.Helper()
	want := l.ok.Load() + n
	deadline := time.NewTimer(time.Minute)
	defer deadline.Stop()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for l.ok.Load() < want {
		select {
		case <-deadline.C:
			l.t.Fatalf("the load stopped at %d responses; failures: %v", l.ok.Load(), l.Failures())
		case <-tick.C:
		}
	}
}

// Turn waits until every request that is in flight now has finished. The proxy has then counted them,
// and the following requests started after the call.
func (l *Load) Turn() {
	l.t.Helper()
	for c := range l.turns {
		ended := l.turns[c].Load()
		testkit.Eventually(l.t, time.Minute, func() error {
			if l.turns[c].Load() == ended {
				return fmt.Errorf("client %d still has the same request; failures: %v", c, l.Failures())
			}
			return nil
		})
	}
}

// Failures returns the errors of the requests that have failed so far.
func (l *Load) Failures() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.failures)
}

// Answered returns the number of correct responses so far.
func (l *Load) Answered() int64 { return l.ok.Load() }

// Slowest returns the longest time to first token of a stream so far.
func (l *Load) Slowest() time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.slowest
}

// Broken returns the number of streams so far that were visibly cut after their first text.
func (l *Load) Broken() int64 { return l.broken.Load() }

// Finish stops the clients, waits for their requests in flight, and fails the test if an uncommitted
// request failed.
func (l *Load) Finish() {
	l.stop()
	l.wg.Wait()
	l.client.Close()
	l.plain.CloseIdleConnections()
	if n := len(l.failures); n > 0 {
		l.t.Errorf("%d of %d requests failed: %s", n, int64(n)+l.ok.Load(), strings.Join(l.failures[:min(n, 5)], "\n"))
	}
	l.failures = nil
	l.t.Logf("load: %d correct responses, %d streams visibly broken after their first text; %d connections refused, %d lost and retried",
		l.ok.Load(), l.broken.Load(), l.refused.Load(), l.cut.Load())
}

// FinishUncut is Finish, and fails the test if a stream was cut as well.
func (l *Load) FinishUncut() {
	l.t.Helper()
	l.Finish()
	assert.EqualValues(l.t, 0, l.Broken(), "streams were cut")
}
