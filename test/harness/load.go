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

	"github.com/pdmesh/pdmesh/sim/fakevllm"
	"github.com/pdmesh/pdmesh/sim/loadgen"
	"github.com/pdmesh/pdmesh/sim/testkit"
)

// Load is a number of clients that send one request after the other, half of
// them streaming, until they are stopped. Every answer is checked.
type Load struct {
	t      testing.TB
	model  string
	pause  time.Duration
	client *loadgen.Client
	plain  *http.Client
	stop   context.CancelFunc
	wg     sync.WaitGroup

	// retrying clients send a request again, to the next proxy, when its
	// connection is refused or lost, as the official clients do.
	retrying     bool
	refused, cut atomic.Int64
	turns        []atomic.Int64 // by client: requests that have ended, well or not
	ok, broken   atomic.Int64
	mu           sync.Mutex // guards failures and slowest
	failures     []string
	slowest      time.Duration
}

// StartLoad begins; Finish ends it. Requests go round the given proxies, each
// client sends its next one after pause.
func StartLoad(t testing.TB, clients int, pause time.Duration, urls ...string) *Load {
	t.Helper()
	return startLoad(t, &Load{model: Model}, clients, pause, urls)
}

// StartRetryingLoad is StartLoad with clients that try the next proxy when a
// connection is refused, or lost before a byte of an answer came, as an idle one
// is that the proxy closes while the request is on its way. Refused and Cut
// count these. An error that a proxy answers with is as little forgiven as
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
			for i := 0; wait(ctx, l.pause); i++ {
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

// LoadTokens is how many tokens each request of a Load asks for.
const LoadTokens = 24

// retries bounds how often a retrying client sends one request again.
const retries = 8

// again counts a failure that a retrying client does not care about.
func (l *Load) again(err error, more bool) bool {
	switch {
	case !l.retrying || !more:
		return false
	case errors.Is(err, syscall.ECONNREFUSED):
		l.refused.Add(1)
	case errors.Is(err, syscall.ECONNRESET), errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, syscall.EPIPE),
		strings.HasSuffix(err.Error(), "server closed idle connection"): // net/http has no name for it
		l.cut.Add(1)
	default:
		return false
	}
	return true
}

// stream sends a streaming request and reports whether it is to be sent again. An
// answer that is cut after its first text was committed: it may break, visibly.
func (l *Load) stream(url, prompt string, more bool) (again bool) {
	r := completeOf(context.WithoutCancel(l.t.Context()), l.client, l.model, url, prompt, LoadTokens)
	switch {
	case r.Err == nil:
		l.ok.Add(1)
		l.mu.Lock()
		l.slowest = max(l.slowest, r.TTFT)
		l.mu.Unlock()
	case r.Header == nil && l.again(r.Err, more):
		return true
	case r.TTFT > 0 && !errors.Is(r.Err, loadgen.ErrWrong):
		l.broken.Add(1)
	default:
		l.fail("stream: %v (first text after %s)", r.Err, r.TTFT)
	}
	return false
}

// whole is the same for a request that does not stream.
func (l *Load) whole(url, prompt string, more bool) (again bool) {
	body := fmt.Sprintf(`{"model":%q,"prompt":%q,"max_tokens":%d,"ignore_eos":true}`, l.model, prompt, LoadTokens)
	resp, err := l.plain.Post(url+"/v1/completions", "application/json", strings.NewReader(body)) //nolint:noctx // has a timeout
	if err != nil {
		if l.again(err, more) {
			return true
		}
		l.fail("whole: %v", err)
		return false
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil && l.retrying { // the answer had begun, as with a stream
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

// wait pauses and reports whether to go on.
func wait(ctx context.Context, d time.Duration) bool {
	if d > 0 {
		timer := time.NewTimer(d)
		defer timer.Stop()
		select {
		case <-ctx.Done():
		case <-timer.C:
		}
	}
	return ctx.Err() == nil
}

// T is the test that the load belongs to.
func (l *Load) T() testing.TB { return l.t }

// Served waits until n more requests have been answered.
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
			l.t.Fatalf("the load stands still at %d answers; failures: %v", l.ok.Load(), l.Failures())
		case <-tick.C:
		}
	}
}

// Turn waits until every request has ended that is under way now: what the proxy
// did for them it has counted, and those that follow were begun after the call.
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

// Failures lists the requests that were lost so far.
func (l *Load) Failures() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.failures)
}

// Answered counts the right answers so far.
func (l *Load) Answered() int64 { return l.ok.Load() }

// Slowest is the longest time to the first text of a stream so far.
func (l *Load) Slowest() time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.slowest
}

// Refused counts the connections so far that were refused, of retrying clients.
func (l *Load) Refused() int64 { return l.refused.Load() }

// Cut counts the requests so far whose connection was lost and that were sent
// again, of retrying clients.
func (l *Load) Cut() int64 { return l.cut.Load() }

// Broken counts the streams so far that were visibly cut after their first text.
func (l *Load) Broken() int64 { return l.broken.Load() }

// Finish stops the clients, lets them end their requests, and fails the test
// if a request was lost that had not been committed.
func (l *Load) Finish() {
	l.stop()
	l.wg.Wait()
	l.client.Close()
	l.plain.CloseIdleConnections()
	if n := len(l.failures); n > 0 {
		l.t.Errorf("%d of %d requests failed: %s", n, int64(n)+l.ok.Load(), strings.Join(l.failures[:min(n, 5)], "\n"))
	}
	l.failures = nil
	l.t.Logf("load: %d right answers, %d streams visibly broken after their first text; %d connections refused, %d lost, and tried again",
		l.ok.Load(), l.broken.Load(), l.refused.Load(), l.cut.Load())
}
