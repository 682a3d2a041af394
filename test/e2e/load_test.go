package e2e_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pdmesh/pdmesh/internal/fakevllm"
	"github.com/pdmesh/pdmesh/internal/loadgen"
)

// load is a number of clients that send one request after the other, half of
// them streaming, until they are stopped. Every answer is checked.
type load struct {
	t      *testing.T
	urls   []string
	client *loadgen.Client
	plain  *http.Client
	stop   context.CancelFunc
	wg     sync.WaitGroup

	ok, broken atomic.Int64
	mu         sync.Mutex // guards failures
	failures   []string
}

// startLoad begins; finish ends it. Requests go round the given proxies.
func startLoad(t *testing.T, clients int, urls ...string) *load {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	l := &load{
		t: t, urls: urls, stop: cancel, client: loadgen.NewClient(clients, nil),
		plain: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: clients}, Timeout: time.Minute},
	}
	for c := range clients {
		l.wg.Go(func() {
			for i := 0; ctx.Err() == nil; i++ {
				prompt := fmt.Sprintf("client %d says line %d of many", c, i)
				url := urls[(c+i)%len(urls)]
				if c%2 == 0 {
					l.stream(url, prompt)
				} else {
					l.whole(url, prompt)
				}
			}
		})
	}
	t.Cleanup(l.finish)
	return l
}

const loadTokens = 24

// stream sends a streaming request. An answer that is cut after its first
// text was committed: it may break, visibly.
func (l *load) stream(url, prompt string) {
	r := complete(context.WithoutCancel(l.t.Context()), l.client, url, prompt, loadTokens)
	switch {
	case r.Err == nil:
		l.ok.Add(1)
	case r.TTFT > 0 && !errors.Is(r.Err, loadgen.ErrWrong):
		l.broken.Add(1)
	default:
		l.fail("stream: %v (first text after %s)", r.Err, r.TTFT)
	}
}

func (l *load) whole(url, prompt string) {
	body := fmt.Sprintf(`{"model":%q,"prompt":%q,"max_tokens":%d,"ignore_eos":true}`, model, prompt, loadTokens)
	resp, err := l.plain.Post(url+"/v1/completions", "application/json", strings.NewReader(body)) //nolint:noctx // has a timeout
	if err != nil {
		l.fail("whole: %v", err)
		return
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		l.fail("whole: status %d, %v: %.300s", resp.StatusCode, err, b)
		return
	}
	var answer struct{ Choices []struct{ Text string } }
	if err := json.Unmarshal(b, &answer); err != nil || len(answer.Choices) != 1 {
		l.fail("whole: %v: %.300s", err, b)
		return
	}
	want := fakevllm.ExpectedText(prompt, fakevllm.Sampling{MaxTokens: loadTokens, IgnoreEOS: true}).Text
	if answer.Choices[0].Text != want {
		l.fail("whole: wrong answer")
		return
	}
	l.ok.Add(1)
}

func (l *load) fail(format string, args ...any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.failures = append(l.failures, fmt.Sprintf(format, args...))
}

// served waits until n more requests have been answered.
func (l *load) served(n int64) {
	l.t.Helper()
	want := l.ok.Load() + n
	deadline := time.NewTimer(time.Minute)
	defer deadline.Stop()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for l.ok.Load() < want {
		select {
		case <-deadline.C:
			l.t.Fatalf("the load stands still at %d answers; failures: %v", l.ok.Load(), l.failures)
		case <-tick.C:
		}
	}
}

// finish stops the clients, lets them end their requests, and fails the test
// if a request was lost that had not been committed.
func (l *load) finish() {
	l.stop()
	l.wg.Wait()
	l.client.Close()
	l.plain.CloseIdleConnections()
	if n := len(l.failures); n > 0 {
		l.t.Errorf("%d of %d requests failed: %s", n, int64(n)+l.ok.Load(), strings.Join(l.failures[:min(n, 5)], "\n"))
		l.failures = nil
	}
	l.t.Logf("load: %d right answers, %d streams visibly broken after their first text", l.ok.Load(), l.broken.Load())
}

// get fetches a page of a proxy.
func get(t *testing.T, url string) []byte {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	return send(t, req)
}

func send(t *testing.T, req *http.Request) []byte {
	t.Helper()
	req.Close = true
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		t.Fatalf("%s %s: %s %v: %s", req.Method, req.URL, resp.Status, err, b)
	}
	return b
}

// add calls a proxy's /instances/add and gives its message.
func add(t *testing.T, url, key, role, address string) string {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url+"/instances/add",
		bytes.NewReader(fmt.Appendf(nil, `{"type":%q,"instance":%q}`, role, address)))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("X-Api-Key", key)
	var answer struct{ Message string }
	if err := json.Unmarshal(send(t, req), &answer); err != nil {
		t.Fatal(err)
	}
	return answer.Message
}

// metric sums the samples of a metric whose labels hold all the given texts.
func metric(t *testing.T, url, name string, labels ...string) float64 {
	t.Helper()
	var sum float64
lines:
	for line := range strings.Lines(string(get(t, url+"/metrics"))) {
		if !strings.HasPrefix(line, name+"{") && !strings.HasPrefix(line, name+" ") {
			continue
		}
		for _, l := range labels {
			if !strings.Contains(line, l) {
				continue lines
			}
		}
		var v float64
		if _, err := fmt.Sscan(line[strings.LastIndexByte(strings.TrimSpace(line), ' '):], &v); err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		sum += v
	}
	return sum
}
