package real_test

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/sim/testkit"
)

const (
	// hang is the time for which an engine core is stopped.
	hang = time.Minute
	// queued is the least time until the first token of the last request of TestQueue, and the least
	// pause of the stream of TestPause. It exceeds every limit for silence without progress.
	queued = 150 * time.Second
)

// completion is an answer and how the proxy obtained it.
type completion struct {
	status                 int
	retryAfter             string
	text, decode, attempts string
	first                  time.Duration // time to the first text of a stream
	pause                  time.Duration // longest time between two texts
	err                    error
}

// stream sends a streamed completion to a server, with pairs of header names and values.
func (r *rig) stream(url, prompt string, tokens int, header ...string) (c completion) {
	raw, err := json.Marshal(map[string]any{"model": model, "prompt": prompt, "max_tokens": tokens, "temperature": 0, "ignore_eos": true, "stream": true})
	if err != nil {
		return completion{err: err}
	}
	req, err := http.NewRequestWithContext(r.t.Context(), http.MethodPost, url+"/v1/completions", strings.NewReader(string(raw)))
	if err != nil {
		return completion{err: err}
	}
	req.Header = http.Header{"Content-Type": {"application/json"}, "X-Api-Key": {adminKey}, "X-Pd-Trace": {"1"}}
	for pair := range slices.Chunk(header, 2) {
		req.Header.Set(pair[0], pair[1])
	}
	began := time.Now()
	resp, err := r.http.Do(req)
	if err != nil {
		return completion{err: err}
	}
	defer resp.Body.Close()
	c.status, c.retryAfter = resp.StatusCode, resp.Header.Get("Retry-After")
	c.decode, c.attempts = resp.Header.Get("X-Pd-Decode"), resp.Header.Get("X-Pd-Attempts")
	if c.status != http.StatusOK {
		body, err := io.ReadAll(resp.Body)
		c.text, c.err = string(body), err
		return c
	}
	events := bufio.NewScanner(resp.Body)
	events.Buffer(nil, 1<<20)
	var last time.Duration
	for events.Scan() {
		data, ok := strings.CutPrefix(events.Text(), "data: ")
		if !ok || data == "[DONE]" {
			continue
		}
		var chunk struct {
			Choices []struct{ Text string }
			Error   json.RawMessage
		}
		if err := json.Unmarshal([]byte(data), &chunk); err != nil || chunk.Error != nil || len(chunk.Choices) != 1 {
			return completion{err: fmt.Errorf("status %d, event %q: %w", resp.StatusCode, data, err)}
		}
		if now := time.Since(began); chunk.Choices[0].Text != "" {
			if c.text == "" {
				c.first = now
			} else {
				c.pause = max(c.pause, now-last)
			}
			last = now
		}
		c.text += chunk.Choices[0].Text
	}
	c.err = events.Err()
	return c
}

// TestHungCore stops the core of one of two decode engines for a minute while its API server runs. The
// proxy ejects the engine and answers with the other one. Streams that had started on it continue after
// the core does. All texts equal those of a single vLLM.
func TestHungCore(t *testing.T) {
	if short() {
		t.Skip("not part of the short form")
	}
	r := newRig(t)
	alone, err := r.launch("alone", "")
	require.NoError(t, err)
	prompts, want := make([]string, 8), map[string]string{}
	for i := range prompts {
		prompts[i] = long(fmt.Sprintf("Hang %d:", i))
		tokens := 24
		if i < 4 {
			tokens = 600 // enough to be running when the core is stopped
		}
		c := r.stream(alone.url(), prompts[i], tokens)
		if c.err != nil {
			t.Fatal(c.err)
		}
		want[prompts[i]] = c.text
	}
	require.NoError(t, alone.Stop(t.Context()))
	r.adminKey = adminKey
	engines := r.start(2)
	victim := engines[1]
	worker, err := worker(victim.Process)
	require.NoError(t, err)
	core, err := number(worker, "status", "PPid:")
	require.NoError(t, err)

	running := make(chan completion, 4)
	for i := range 4 {
		go func() {
			c := r.stream(r.proxy.URL(), prompts[i], 600)
			if c.err == nil && c.text != want[prompts[i]] {
				c.err = fmt.Errorf("%q, want %q", c.text, want[prompts[i]])
			}
			running <- c
		}()
	}
	testkit.Eventually(t, patience, func() error {
		if n := r.metric(victim, "vllm:generation_tokens_total", ""); n < 20 {
			return fmt.Errorf("%v tokens are generated", n) // some have reached the client
		}
		return nil
	})
	require.NoError(t, syscall.Kill(core, syscall.SIGSTOP))
	stopped := time.Now()
	defer func() { _ = syscall.Kill(core, syscall.SIGCONT) }() // if the test fails earlier

	var group sync.WaitGroup
	var mu sync.Mutex
	answers, slowest := 0, time.Duration(0)
	for i := 4; i < len(prompts); i++ {
		group.Go(func() {
			for time.Since(stopped) < hang {
				sent := time.Now()
				c := r.stream(r.proxy.URL(), prompts[i], 24)
				if c.err != nil || c.text != want[prompts[i]] {
					t.Errorf("while the core is stopped: %q, %v, want %q", c.text, c.err, want[prompts[i]])
				}
				mu.Lock()
				answers, slowest = answers+1, max(slowest, time.Since(sent))
				mu.Unlock()
			}
		})
	}
	testkit.Eventually(t, hang, func() error { return r.viewIs(victim, instance.Ejected, "hung:") })
	logf("the core of %s is stopped: ejected after %v", victim.address, time.Since(stopped).Round(100*time.Millisecond))
	group.Wait()
	logf("%d answers while it was stopped, all right, the slowest after %v", answers, slowest.Round(time.Millisecond))
	require.NoError(t, syscall.Kill(core, syscall.SIGCONT))
	resumed := time.Now()
	paused := 0
	for range 4 {
		c := <-running
		if c.err != nil {
			t.Errorf("a stream that had started: %v", c.err)
		}
		if c.decode == victim.address {
			paused++
		}
	}
	if paused == 0 {
		t.Error("no stream was interrupted")
	}
	testkit.Eventually(t, patience, func() error { return r.viewIs(victim, "", "") })
	logf("%d streams went on; readmitted %v after the core", paused, time.Since(resumed).Round(100*time.Millisecond))
	served := 0
	for served < 4 {
		answers := make(chan completion, len(prompts)-4)
		for i := 4; i < len(prompts); i++ {
			go func() { // concurrently, so that each instance gets some
				c := r.stream(r.proxy.URL(), prompts[i], 24)
				if c.err == nil && c.text != want[prompts[i]] {
					c.err = fmt.Errorf("%q, want %q", c.text, want[prompts[i]])
				}
				answers <- c
			}()
		}
		for range cap(answers) {
			c := <-answers
			if c.err != nil {
				t.Fatalf("afterwards: %v", c.err)
			}
			if c.decode == victim.address {
				served++
			}
		}
	}
}

// viewIs returns nil if the proxy has this view of a decode instance, with a reason that begins with prefix.
func (r *rig) viewIs(e *engine, view instance.View, reason string) error {
	var status struct{ Instances []instance.Listing }
	if err := r.get(r.t.Context(), r.proxy.URL()+"/status", &status); err != nil {
		return err
	}
	for _, l := range status.Instances {
		if l.Address == e.address && l.Role == instance.Decode {
			if l.View == view && strings.HasPrefix(l.Reason, reason) {
				return nil
			}
			return fmt.Errorf("view %q, reason %q", l.View, l.Reason)
		}
	}
	return fmt.Errorf("%s is not listed", e.address)
}

// TestQueue sends streams to engines that run one request at a time, enough for the last one to wait for
// minutes. No request is cancelled or computed twice.
func TestQueue(t *testing.T) {
	if short() {
		t.Skip("not part of the short form")
	}
	r := newRig(t)
	r.more = []string{"--max-num-seqs", "1"}
	r.adminKey = adminKey
	engines := r.start(1)
	const tokens = 1800
	fastest := time.Hour // another program may slow down a stream
	for range 3 {
		began := time.Now()
		if c := r.stream(r.proxy.URL(), "One:", tokens); c.err != nil {
			t.Fatal(c.err)
		}
		fastest = min(fastest, time.Since(began))
	}
	n := int(queued/fastest) + 3
	logf("a stream takes %v: %d at once", fastest.Round(time.Millisecond), n)
	before := r.metric(engines[0], "vllm:request_success_total", "")
	results := make(chan completion, n)
	for i := range n {
		go func() { results <- r.stream(r.proxy.URL(), fmt.Sprintf("Number %d:", i), tokens) }()
	}
	last := time.Duration(0)
	for range n {
		c := <-results
		if c.err != nil || c.attempts != "1" {
			t.Errorf("%v, %s attempts, first text after %v", c.err, c.attempts, c.first)
		}
		last = max(last, c.first)
	}
	if last < queued {
		t.Errorf("the last request waited only %v", last)
	}
	if prefills := r.metric(engines[0], "vllm:request_success_total", "") - before; prefills != float64(n) {
		t.Errorf("%v prefills for %d requests", prefills, n)
	}
	logf("%d streams complete, each in one attempt, the last after %v in the queue", n, last.Round(time.Second))
}

// TestOverload sends twice the requests that a pair of engines can serve, with the queue on. No admitted
// request fails, or misses its deadline by more than the duration of a stream. Once the proxy has learned how
// many streams the decode engine runs, few requests wait there. Then clients that bypass the proxy fill that
// engine: its own 503 is passed on and does not eject it.
func TestOverload(t *testing.T) {
	if short() {
		t.Skip("not part of the short form")
	}
	const seats, tokens, deadline, lasts = 8, 300, 15 * time.Second, time.Minute
	r := newRig(t)
	r.more = []string{"--max-num-seqs", strconv.Itoa(seats), "--max-num-queued-reqs", strconv.Itoa(4 * seats)}
	r.adminKey = adminKey
	r.proxyArgs = []string{"--queue", "on"}
	engines := r.start(1)
	number := 0
	prompt := func() string {
		number++
		return fmt.Sprintf("Number %d: %s", number, strings.Repeat("the weather of the day ", 40))
	}
	began := time.Now()
	for range 8 { // the queue refuses only after it has learned from 50 answers
		var group sync.WaitGroup
		for range seats {
			p := prompt()
			group.Go(func() {
				if c := r.stream(r.proxy.URL(), p, tokens); c.err != nil || c.status != http.StatusOK {
					t.Errorf("%d %v", c.status, c.err)
				}
			})
		}
		group.Wait()
	}
	every := time.Since(began) / 8 / seats / 2
	logf("%d streams of %d tokens at once: now one each %v for %v, with a deadline of %v", seats, tokens, every.Round(time.Millisecond), lasts, deadline)
	var mu sync.Mutex
	var group sync.WaitGroup
	var firsts, refusals []time.Duration
	var waiting [2][]float64
	began = time.Now()
	for arrivals := time.NewTicker(every); time.Since(began) < lasts; <-arrivals.C {
		p := prompt()
		group.Go(func() {
			sent := time.Now()
			c := r.stream(r.proxy.URL(), p, tokens, "X-Request-Timeout", strconv.Itoa(int(deadline.Seconds())))
			mu.Lock()
			defer mu.Unlock()
			switch {
			case c.status == http.StatusTooManyRequests && c.retryAfter != "":
				refusals = append(refusals, time.Since(sent))
			case c.err != nil || c.status != http.StatusOK:
				t.Errorf("%d %v %s, %s attempts, after %v", c.status, c.err, c.text, c.attempts, time.Since(began))
			default:
				firsts = append(firsts, c.first)
			}
		})
		if time.Since(began) > lasts/4 {
			for i, e := range engines {
				waiting[i] = append(waiting[i], r.metric(e, "vllm:num_requests_waiting", ""))
			}
		}
	}
	group.Wait()
	at := func(list []float64, q float64) float64 {
		slices.Sort(list)
		return list[int(q*float64(len(list)-1))]
	}
	last := slices.Max(firsts)
	logf("%d admitted, %d refused after %v at most, first text after %v at most; waiting in prefill p90 %v, most %v, in decode p90 %v, most %v",
		len(firsts), len(refusals), slices.Max(append(refusals, 0)).Round(time.Millisecond), last.Round(time.Millisecond),
		at(waiting[0], 0.9), at(waiting[0], 1), at(waiting[1], 0.9), at(waiting[1], 1))
	if len(refusals) == 0 || last > deadline+3*time.Second || max(at(waiting[0], 0.9), at(waiting[1], 0.9)) > seats/2 {
		t.Errorf("%d refused, the last first text after %v", len(refusals), last)
	}
	// Clients that bypass the proxy and send continuously.
	var direct sync.WaitGroup
	var enough atomic.Bool
	defer func() { enough.Store(true); direct.Wait() }()
	for range 5 * seats {
		p := prompt()
		direct.Go(func() {
			for !enough.Load() {
				r.stream(engines[1].url(), p, tokens)
			}
		})
	}
	testkit.Eventually(t, patience, func() error {
		if c := r.stream(engines[1].url(), prompt(), 1); c.status != http.StatusServiceUnavailable {
			return fmt.Errorf("status %d", c.status)
		}
		return nil
	})
	answers := map[int]int{}
	for range 8 {
		c := r.stream(r.proxy.URL(), prompt(), 4, "X-Request-Timeout", "1")
		answers[c.status]++
		if c.status != http.StatusOK && c.status != http.StatusServiceUnavailable && c.status != http.StatusTooManyRequests || c.err != nil {
			t.Errorf("%d %v", c.status, c.err)
		}
	}
	if err := r.viewIs(engines[1], "", ""); err != nil {
		t.Errorf("the engine that refused: %v", err)
	}
	logf("while the engine refuses: answers %v, and it is not ejected", answers)
}

// TestPause has a stream that pauses for minutes after its first text while the engine generates: with
// --stream-interval the engine sends the rest at the end. The stream is not cut, and its text equals that
// of the decode instance without the proxy.
func TestPause(t *testing.T) {
	if short() {
		t.Skip("not part of the short form")
	}
	r := newRig(t)
	r.more = append([]string{"--stream-interval", "1000000"}, agentLength...)
	r.more = append(r.more, "--served-model-name", model)
	r.adminKey = adminKey
	decode := r.start(1)[1]
	tokens := 4000
	began := time.Now()
	if c := r.stream(r.proxy.URL(), "One:", tokens); c.err != nil {
		t.Fatal(c.err)
	}
	logf("%d tokens take %v", tokens, since(began))
	tokens = min(60000, int(float64(tokens)*1.2*float64(queued)/float64(time.Since(began))))
	direct := make(chan completion, 1)
	go func() { direct <- r.stream(decode.url(), "Two:", tokens) }()
	c, want := r.stream(r.proxy.URL(), "Two:", tokens), <-direct
	if c.err != nil || want.err != nil || c.attempts != "1" {
		t.Fatalf("%v, %v, %s attempts", c.err, want.err, c.attempts)
	}
	if c.text != want.text {
		t.Errorf("the text of %d bytes differs from that of the instance without the proxy, %d bytes", len(c.text), len(want.text))
	}
	if c.pause < queued {
		t.Errorf("the stream paused only %v", c.pause)
	}
	logf("a stream of %d tokens paused %v and is complete", tokens, c.pause.Round(time.Second))
}
