package faults_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/sim/fakevllm"
	"github.com/pdmesh/pdmesh/sim/fleet"
	"github.com/pdmesh/pdmesh/sim/testkit"
	"github.com/pdmesh/pdmesh/sim/testkit/sseanswer"
	"github.com/pdmesh/pdmesh/test/harness"
)

// streamed is a kind of request whose streams are cut.
type streamed struct {
	path, body string
	refused    string // reason for which some of its streams may end with the error; "" if all continue
}

// Bodies of the kinds: %[1]d is the number of the request, %[2]d the number of tokens. Streams with tools end
// earlier, and streams that are replayed are short enough for a replay.
const (
	ofChat  = `{"messages":[{"role":"user","content":"request %[1]d"}],`
	aTool   = `"tools":[{"type":"function","function":{"name":"look"}}],`
	aSchema = `"response_format":{"type":"json_schema","json_schema":{"name":"a","schema":{}}},`
)

func kinds() map[string]streamed {
	return map[string]streamed{
		"completion":              {"/v1/completions", `{"prompt":"request %[1]d","ignore_eos":true,"max_tokens":%[2]d`, ""},
		"completion, stop string": {"/v1/completions", `{"prompt":"request %[1]d","ignore_eos":true,"stop":["never written"],"max_tokens":%[2]d`, ""},
		"completion, seed":        {"/v1/completions", `{"prompt":"request %[1]d","ignore_eos":true,"seed":5,"max_tokens":%[2]d`, "seed"},
		"chat":                    {"/v1/chat/completions", ofChat + `"include_reasoning":true,"ignore_eos":true,"max_tokens":%[2]d`, ""},
		"chat, tools":             {"/v1/chat/completions", ofChat + aTool + `"max_tokens":9%[2]d`, "tool_call"},
		"chat, tools, greedy":     {"/v1/chat/completions", ofChat + aTool + `"temperature":0,"max_tokens":9%[2]d`, ""},
		"chat, schema":            {"/v1/chat/completions", ofChat + aSchema + `"max_tokens":%[2]d`, "structured"},
		"chat, schema, greedy":    {"/v1/chat/completions", ofChat + aSchema + `"temperature":0,"max_tokens":%[2]d`, ""},
		"responses":               {"/v1/responses", `{"input":"request %[1]d","ignore_eos":true,"max_output_tokens":150`, "api"},
		"responses, greedy":       {"/v1/responses", `{"input":"request %[1]d","ignore_eos":true,"temperature":0,"max_output_tokens":150`, ""},
		"messages":                {"/v1/messages", ofChat + `"ignore_eos":true,"max_tokens":150`, "api"},
		"messages, greedy":        {"/v1/messages", ofChat + `"ignore_eos":true,"temperature":0,"max_tokens":150`, ""},
	}
}

// continued records the streams of a load by kind.
type continued struct {
	mu    sync.Mutex
	whole map[string]int // complete and exact
	moved map[string]int // complete streams that were continued at least once
	lost  map[string]int // ended with the error of a lost stream
	wrong []error
}

// stream sends one request and compares its stream with the answer of an undisturbed engine.
func (c *continued) stream(ctx context.Context, url, kind string, number, tokens int, o fakevllm.Options) {
	q := kinds()[kind]
	body := fmt.Sprintf(q.body, number, tokens) + `,"model":"` + harness.Model + `","stream":true`
	if strings.HasSuffix(q.path, "completions") {
		body += `,"stream_options":{"include_usage":true}`
	}
	body += "}"
	want, err := o.Expected(q.path, []byte(body))
	text := ""
	if err == nil {
		text, err = readAll(ctx, url+q.path, body)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if ctx.Err() != nil {
		return
	}
	got, parse := sseanswer.Read(text)
	switch {
	case parse == nil && got.Error != "" && len(got.Heads) > 0:
		c.lost[kind]++
	case err == nil && parse == nil:
		err = got.Differs(&want[0], false)
		fallthrough
	default:
		if err = errors.Join(err, parse); err != nil {
			c.wrong = append(c.wrong, fmt.Errorf("%s %d: %w", kind, number, err))
			return
		}
		c.whole[kind]++
		if got.Continued > 0 {
			c.moved[kind]++
		}
	}
}

// readAll sends a request and returns the received part of its stream.
func readAll(ctx context.Context, url, body string) (string, error) {
	var b strings.Builder
	err := eachLine(ctx, url, body, func(line string) { b.WriteString(line + "\n") })
	return b.String(), err
}

// eachLine sends a request and calls f with each line of the answer.
func eachLine(ctx context.Context, url, body string, f func(string)) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, strings.NewReader(body))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	lines := bufio.NewScanner(resp.Body)
	for lines.Buffer(nil, 1<<20); lines.Scan(); {
		f(lines.Text())
	}
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("status %d", resp.StatusCode)
	}
	return lines.Err()
}

var notContinued = regexp.MustCompile(`pd_streams_not_continued_total\{reason="(\w+)"\} (\d+)`)

// refusals returns the number of streams that were not continued, by reason.
func refusals(t *testing.T, proxies []*fleet.Proxy) map[string]int {
	t.Helper()
	out := map[string]int{}
	for _, p := range proxies {
		for _, m := range notContinued.FindAllStringSubmatch(string(harness.Get(t, p.URL()+"/metrics")), -1) {
			if n, _ := strconv.Atoi(m[2]); n > 0 {
				out[m[1]] += n
			}
		}
	}
	return out
}

// Decode instances are killed one after the other while clients stream through three proxies. Every stream
// that can be continued is, exactly. PD_TEST_CONTINUE_CHECK is the length of the load, of 200 clients;
// without it, two instances are killed under a few streams.
func TestStreamsContinueAfterKill(t *testing.T) {
	d, err := time.ParseDuration(os.Getenv("PD_TEST_CONTINUE_CHECK"))
	clients, every, tokens, kills := 200, 10*time.Second, 400, int(d/(10*time.Second))
	if err != nil {
		clients, every, tokens, kills = 12, 1500*time.Millisecond, 120, 2
	}
	parsed := 12
	engine := []string{"--vllm-version", "0.32.0", "--split-characters", "--reasoning-parser", "qwen3", "--tool-call-parser", "hermes", "--parsed-words", strconv.Itoa(parsed), "--itl", "40ms"}
	r := build(t, plan{
		proxies: 3, prefill: 2, decode: 4, engineArgs: engine, ttl: longer,
		proxyArgs: []string{"--continue-streams", "3"},
	})
	o := fakevllm.Options{Models: []string{harness.Model}, Version: "0.32.0", SplitCharacters: true, ReasoningParser: "qwen3", ToolParser: "hermes", ParsedWords: parsed}
	names := slices.Sorted(maps.Keys(kinds()))
	c := continued{whole: map[string]int{}, moved: map[string]int{}, lost: map[string]int{}}
	next := 5 // the number of the next decode instance
	load := func() {
		stop := make(chan struct{})
		var wg sync.WaitGroup
		for i := range clients {
			wg.Go(func() {
				for n := 0; ; n++ {
					select {
					case <-stop:
						return
					default:
					}
					number := n*clients + i
					c.stream(t.Context(), r.proxies[i%3].URL(), names[number%len(names)], number, tokens, o)
				}
			})
		}
		for range kills {
			wait(t, every)
			killed := r.decode[0]
			require.NoError(t, killed.Kill())
			r.decode = append(r.decode[1:], r.node(instance.Decode, next, longer))
			next++
		}
		close(stop)
		wg.Wait()
	}
	load()
	// The kills may hit only streams that have not begun, or that cannot be continued.
	for tries := 0; d == 0 && len(c.moved) == 0 && tries < 3; tries++ {
		load()
	}
	reasons := refusals(t, r.proxies)
	t.Logf("%s\nnot continued: %v", c.table(), reasons)
	allowed := map[string]int{}
	for kind, n := range c.lost {
		if why := kinds()[kind].refused; why != "" {
			allowed[why] += n
		} else {
			t.Errorf("%d streams of %s were lost", n, kind)
		}
	}
	for _, err := range c.wrong {
		t.Errorf("%.1500v", err)
	}
	assert.True(t, maps.Equal(reasons, allowed), "reasons %v, want %v", reasons, allowed)
	for how, list := range pauses(t, r.proxies) {
		t.Logf("pause of %d streams after the loss was noticed, %s: p50 %s, p90 %s", len(list), how, quantile(list, 0.5), quantile(list, 0.9))
		// Prefill of a continued stream takes no time here.
		if limit := 500 * time.Millisecond; d > 0 && (how == "chat" || how == "prompt") && quantile(list, 0.9) > limit {
			t.Errorf("%s: more than %s", how, limit)
		}
	}
	assert.NotEmpty(t, c.moved, "no stream went on")
}

// table returns the outcomes of the streams by kind, and the share of the cut ones that were continued.
func (c *continued) table() string {
	var b strings.Builder
	row := func(name string, whole, moved, lost int) {
		share := "-"
		if moved+lost > 0 {
			share = fmt.Sprintf("%.0f %%", 100*float64(moved)/float64(moved+lost))
		}
		fmt.Fprintf(&b, "\n%-24s %8d %9d %6d %8s", name, whole, moved, lost, share)
	}
	fmt.Fprintf(&b, "\n%-24s %8s %9s %6s %8s  refused by", "", "complete", "continued", "lost", "share")
	perAPI := map[string]*[3]int{}
	for _, kind := range slices.Sorted(maps.Keys(kinds())) {
		q := kinds()[kind]
		row(kind, c.whole[kind], c.moved[kind], c.lost[kind])
		b.WriteString("  " + q.refused)
		if perAPI[q.path] == nil {
			perAPI[q.path] = new([3]int)
		}
		for i, n := range []int{c.whole[kind], c.moved[kind], c.lost[kind]} {
			perAPI[q.path][i] += n
		}
	}
	for _, path := range slices.Sorted(maps.Keys(perAPI)) {
		row(path, perAPI[path][0], perAPI[path][1], perAPI[path][2])
	}
	return b.String()
}

var pauseLine = regexp.MustCompile(`how"?[=:]"?(\w+).*pause_ms"?[=:](\d+)`)

// pauses returns the pauses of streams after the loss of their leg was noticed, by the way of continuation.
func pauses(t *testing.T, proxies []*fleet.Proxy) map[string][]time.Duration {
	t.Helper()
	out := map[string][]time.Duration{}
	for _, p := range proxies {
		log, err := os.ReadFile(p.LogFile())
		require.NoError(t, err)
		for _, m := range pauseLine.FindAllSubmatch(log, -1) {
			ms, _ := strconv.Atoi(string(m[2]))
			out[string(m[1])] = append(out[string(m[1])], time.Duration(ms)*time.Millisecond)
		}
	}
	return out
}

// quantile returns a quantile of a list, which it sorts; 0 if it is empty.
func quantile(list []time.Duration, q float64) time.Duration {
	if len(list) == 0 {
		return 0
	}
	slices.Sort(list)
	return list[min(len(list)-1, int(q*float64(len(list))))]
}

// streams sends n requests for completions of the given length to the proxies. It returns a function that
// waits for their ends, and one that returns the number of ended ones.
func (c *continued) streams(t *testing.T, r *rig, n, tokens int, o fakevllm.Options) (wait func(), ended func() int) {
	var wg sync.WaitGroup
	var done atomic.Int64
	for i := range n {
		wg.Go(func() {
			c.stream(t.Context(), r.proxies[i%len(r.proxies)].URL(), "completion", i, tokens, o)
			done.Add(1)
		})
	}
	return wg.Wait, func() int { return int(done.Load()) }
}

// runningOn returns the number of requests that run on an engine.
func runningOn(t *testing.T, n *fleet.Node) int {
	t.Helper()
	var w pendingWork
	engineState(t, n, &w)
	return int(w.Counters.Running)
}

// pdctl drain --move-after --wait returns while the streams continue on another instance.
// PD_TEST_CONTINUE_CHECK has 50 streams of a minute.
func TestStreamsMoveOffDrainedNode(t *testing.T) {
	n, tokens := 50, 1500
	if os.Getenv("PD_TEST_CONTINUE_CHECK") == "" {
		n, tokens = 8, 500 // 20 s: the drain must return long before
	}
	r := build(t, plan{
		proxies: 3, engineArgs: []string{"--vllm-version", "0.32.0", "--itl", "40ms"}, ttl: longer,
		proxyArgs: []string{"--continue-streams", "3"},
	})
	c := continued{whole: map[string]int{}, moved: map[string]int{}, lost: map[string]int{}}
	wait, ended := c.streams(t, r, n, tokens, fakevllm.Options{Models: []string{harness.Model}, Version: "0.32.0"})
	drained := r.decode[0]
	testkit.Until(t, soon, func() int { return runningOn(t, drained) }, func(k int) bool { return k >= n/3 })
	began := time.Now()
	r.mustPdctl("drain", "decode", drained.Address, "--move-after", "2s", "--wait", "--timeout", "60s")
	t.Logf("drained in %s", time.Since(began))
	assert.Equal(t, 0, ended(), "streams had ended before: the drain has waited for them")
	wait()
	t.Logf("complete %v; of them continued %v; lost %v", c.whole, c.moved, c.lost)
	for _, err := range c.wrong {
		t.Errorf("%.1500v", err)
	}
	assert.True(t, c.whole["completion"] == n && c.moved["completion"] >= n/3,
		"%d streams are complete, %d went on", c.whole["completion"], c.moved["completion"])
}

// An instance with 300 streams is killed, and the others have capacity for 200 of them: these continue, and
// the rest end with the error. PD_TEST_CONTINUE_CHECK runs it.
func TestStreamsContinueUpToCapacity(t *testing.T) {
	if os.Getenv("PD_TEST_CONTINUE_CHECK") == "" {
		t.Skip("make continue-check runs it (PD_TEST_CONTINUE_CHECK=5m)")
	}
	const n, capacity, tokens = 300, 200, 1500
	engine := []string{"--vllm-version", "0.32.0", "--itl", "60ms"}
	r := build(t, plan{
		proxies: 3, prefill: 2, decode: 1, engineArgs: engine, ttl: longer,
		proxyArgs: []string{"--continue-streams", "3", "--scrape-interval", "1s"},
	})
	c := continued{whole: map[string]int{}, moved: map[string]int{}, lost: map[string]int{}}
	o := fakevllm.Options{Models: []string{harness.Model}, Version: "0.32.0"}
	waitStreams, _ := c.streams(t, r, n, tokens, o)
	killed := r.decode[0]
	testkit.Until(t, soon, func() int { return runningOn(t, killed) }, func(k int) bool { return k >= n })
	const bystanders, normal, during = 40, 5 * time.Second, 10 * time.Second // some run on the instance that is killed
	r.engineArgs = append(engine, "--max-num-seqs", strconv.Itoa(capacity+bystanders))
	rest := r.node(instance.Decode, 2, longer)
	r.decode = append(r.decode, rest)
	r.awaitAll()
	others, leave := context.WithCancel(t.Context())
	defer leave()
	var wg sync.WaitGroup
	var mu sync.Mutex // guards before and after
	var before, after []time.Duration
	var began time.Time // set before the bystanders leave
	for i := range bystanders {
		wg.Go(func() {
			var own []time.Time
			moved := false
			_ = eachLine(others, r.proxies[i%3].URL()+"/v1/completions", fmt.Sprintf(kinds()["completion"].body, n+i, 100*tokens)+`,"model":"`+harness.Model+`","stream":true}`, func(line string) {
				switch {
				case line == ": continued":
					moved = true
				case strings.HasPrefix(line, "data:"):
					own = append(own, time.Now())
				}
			})
			mu.Lock()
			defer mu.Unlock()
			for i := 1; i < len(own) && !moved; i++ {
				if gap := own[i].Sub(own[i-1]); own[i].Before(began) {
					before = append(before, gap)
				} else {
					after = append(after, gap)
				}
			}
		})
	}
	testkit.Eventually(t, soon, func() error {
		if k := runningOn(t, rest); k < bystanders/4 || k+runningOn(t, killed) < n+bystanders {
			return fmt.Errorf("%d streams run on %s", k, rest.Address)
		}
		return nil
	})
	wait(t, normal)
	began = time.Now()
	require.NoError(t, killed.Kill())
	wait(t, during)
	leave()
	wg.Wait()
	p99 := [2]time.Duration{quantile(before, 0.99), quantile(after, 0.99)}
	t.Logf("time per token of bystanders, p99: %s before the move (%d tokens), %s during it (%d tokens)", p99[0], len(before), p99[1], len(after))
	assert.LessOrEqual(t, p99[1], 2*p99[0], "more than twice as long")
	waitStreams()
	for how, list := range pauses(t, r.proxies) {
		t.Logf("pause of %d streams, %s: p50 %s, p90 %s", len(list), how, quantile(list, 0.5), quantile(list, 0.9))
	}
	t.Logf("complete %v; of them continued %v; lost %v, reasons %v", c.whole, c.moved, c.lost, refusals(t, r.proxies))
	for _, err := range c.wrong {
		t.Errorf("%.600v", err)
	}
	assert.True(t, c.moved["completion"] >= capacity*9/10 && c.moved["completion"]+c.lost["completion"] == n,
		"%d streams went on, %d were lost", c.moved["completion"], c.lost["completion"])
}

// Measures the memory of a stream in a proxy, and the bytes that an engine sends for a token, with and
// without --continue-streams. PD_TEST_CONTINUE_CHECK runs it.
func TestStreamsContinueCost(t *testing.T) {
	if os.Getenv("PD_TEST_CONTINUE_CHECK") == "" {
		t.Skip("make continue-check runs it (PD_TEST_CONTINUE_CHECK=5m)")
	}
	const n = 40
	r := build(t, plan{
		prefill: 1, decode: 1, ttl: longer,
		engineArgs: []string{"--vllm-version", "0.32.0", "--itl", "10ms", "--max-model-len", "100000"},
	})
	ids := strings.TrimSuffix(strings.Repeat("12345,", 32000), ",")
	for _, c := range []struct {
		name, prompt string
		tokens       int
	}{{"4,000 tokens of history", `"four thousand"`, 4000}, {"a prompt of 32,000 tokens", "[" + ids + "]", 100}} {
		var memory [2]float64
		for moves := range 2 {
			listen := testkit.FreePort(t)
			p := r.proxy(fmt.Sprintf("cost-%d-%d", c.tokens, moves), "--continue-streams", strconv.Itoa(3*moves), "--pprof-listen", listen)
			require.NoError(t, p.WaitFor(t.Context(), 1, 1))
			began := heapOf(t, p, listen)
			ctx, leave := context.WithCancel(t.Context())
			var wg sync.WaitGroup
			var full atomic.Int64
			for i := range n {
				wg.Go(func() {
					events := 0
					body := fmt.Sprintf(`{"prompt":%s,"model":%q,"stream":true,"ignore_eos":true,"max_tokens":50000,"user":"%d"}`, c.prompt, harness.Model, i)
					_ = eachLine(ctx, p.URL()+"/v1/completions", body, func(line string) {
						if strings.HasPrefix(line, "data:") {
							if events++; events == c.tokens {
								full.Add(1)
							}
						}
					})
				})
			}
			testkit.Until(t, 5*time.Minute, full.Load, func(k int64) bool { return k >= n })
			memory[moves] = (heapOf(t, p, listen) - began) / n / 1024
			leave()
			wg.Wait()
		}
		t.Logf("%s: %.0f KiB for a stream, %.0f without --continue-streams", c.name, memory[1], memory[0])
	}
	for path, body := range map[string]string{
		"/v1/completions": `{"prompt":"bytes","ignore_eos":true,"max_tokens":1000`, "/v1/chat/completions": ofChat + `"ignore_eos":true,"max_tokens":1000`,
	} {
		var size [2]int
		for i, more := range []string{"", `,"return_token_ids":true`} {
			text, err := readAll(t.Context(), "http://"+r.decode[0].Address+path, fmt.Sprintf(body+"%[2]s", 1, more)+`,"model":"`+harness.Model+`","stream":true}`)
			require.NoError(t, err)
			size[i] = len(text)
		}
		t.Logf("%s: an engine sends %.1f bytes for a token, %.1f without token ids", path, float64(size[1])/1000, float64(size[0])/1000)
	}
}

var heapLine = regexp.MustCompile(`(?m)^go_memstats_heap_alloc_bytes (\S+)`)

// heapOf returns the bytes on the heap of a proxy after a collection.
func heapOf(t *testing.T, p *fleet.Proxy, profiles string) float64 {
	t.Helper()
	resp, err := http.Get("http://" + profiles + "/debug/pprof/heap?gc=1") //nolint:noctx // a test of minutes
	require.NoError(t, err)
	_ = resp.Body.Close()
	m := heapLine.FindStringSubmatch(string(harness.Get(t, p.URL()+"/metrics")))
	require.True(t, m != nil, "no heap in /metrics")
	v, err := strconv.ParseFloat(m[1], 64)
	require.NoError(t, err)
	return v
}
