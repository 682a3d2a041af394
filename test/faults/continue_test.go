package faults_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/sim/fakevllm"
	"github.com/pdmesh/pdmesh/sim/fleet"
	"github.com/pdmesh/pdmesh/sim/testkit"
	"github.com/pdmesh/pdmesh/sim/testkit/sseanswer"
	"github.com/pdmesh/pdmesh/test/harness"
)

// continuable are requests whose streams continue when their decode instance is lost, "chat, tools"
// only outside of a call. The first %d is a number, the second one of tokens; those with tools end
// before it.
var continuable = map[string]struct{ path, body string }{
	"completion":              {"/v1/completions", `{"prompt":"request %d","ignore_eos":true,"max_tokens":%d`},
	"completion, stop string": {"/v1/completions", `{"prompt":"request %d","ignore_eos":true,"stop":["never written"],"max_tokens":%d`},
	"chat":                    {"/v1/chat/completions", `{"messages":[{"role":"user","content":"request %d"}],"include_reasoning":true,"ignore_eos":true,"max_tokens":%d`},
	"chat, tools, greedy": {"/v1/chat/completions", `{"messages":[{"role":"user","content":"request %d"}],"temperature":0,` +
		`"tools":[{"type":"function","function":{"name":"look"}}],"max_tokens":9%d`},
	"chat, schema, greedy": {"/v1/chat/completions", `{"messages":[{"role":"user","content":"request %d"}],"temperature":0,` +
		`"response_format":{"type":"json_schema","json_schema":{"name":"a","schema":{}}},"max_tokens":%d`},
	"chat, tools": {"/v1/chat/completions", `{"messages":[{"role":"user","content":"request %d"}],` +
		`"tools":[{"type":"function","function":{"name":"look"}}],"max_tokens":9%d`},
}

// continued records the streams of a load by kind.
type continued struct {
	mu    sync.Mutex
	whole map[string]int // complete and exact
	moved map[string]int // of them, those that went on at least once
	lost  map[string]int // ended with the error of a lost stream
	wrong []error
}

// stream sends one request and compares its stream with the answer of an undisturbed engine.
func (c *continued) stream(ctx context.Context, url, kind string, number, tokens int, o fakevllm.Options) {
	q := continuable[kind]
	body := fmt.Sprintf(q.body, number, tokens) + `,"model":"` + harness.Model + `","stream":true,"stream_options":{"include_usage":true}}`
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

// readAll sends a request and returns what came of its stream.
func readAll(ctx context.Context, url, body string) (string, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader([]byte(body)))
	if err != nil {
		return "", err
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if resp.StatusCode != http.StatusOK {
		return string(b), fmt.Errorf("status %d: %s", resp.StatusCode, b)
	}
	return string(b), err
}

var notContinued = regexp.MustCompile(`pd_streams_not_continued_total\{reason="(\w+)"\} (\d+)`)

// refusals returns how many streams did not go on, by reason.
func refusals(t *testing.T, proxies []*fleet.Proxy) map[string]int {
	t.Helper()
	out := map[string]int{}
	for _, p := range proxies {
		for _, m := range notContinued.FindAllStringSubmatch(metricsOf(t, p), -1) {
			if n, _ := strconv.Atoi(m[2]); n > 0 {
				out[m[1]] += n
			}
		}
	}
	return out
}

// Decode instances are killed one after the other while clients stream through three proxies. Every
// stream that can go on does, exactly. PD_TEST_CONTINUE_CHECK is the length of the load, of 200
// clients; without it, two instances are killed under a few streams.
func TestStreamsContinueAfterKill(t *testing.T) {
	d, err := time.ParseDuration(os.Getenv("PD_TEST_CONTINUE_CHECK"))
	clients, every, tokens, kills := 200, 10*time.Second, 400, int(d/(10*time.Second))
	if err != nil {
		clients, every, tokens, kills = 12, 1500*time.Millisecond, 120, 2
	}
	etcd := testkit.StartEtcdProcess(t)
	parsed := 12
	engine := []string{"--vllm-version", "0.32.0", "--split-characters", "--reasoning-parser", "qwen3", "--tool-call-parser", "hermes", "--parsed-words", strconv.Itoa(parsed), "--itl", "40ms"}
	r := build(t, plan{
		etcd: []string{etcd.Endpoint()}, proxies: 3, prefill: 2, decode: 4, engineArgs: engine, ttl: longer,
		proxyArgs: []string{"--continue-streams", "3"},
	})
	o := fakevllm.Options{Models: []string{harness.Model}, Version: "0.32.0", SplitCharacters: true, ReasoningParser: "qwen3", ToolParser: "hermes", ParsedWords: parsed}
	kinds := slices.Sorted(maps.Keys(continuable))
	c := continued{whole: map[string]int{}, moved: map[string]int{}, lost: map[string]int{}}
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
				c.stream(t.Context(), r.proxies[i%3].URL(), kinds[number%len(kinds)], number, tokens, o)
			}
		})
	}
	for k := range kills {
		wait(t, every)
		killed := r.decode[0]
		if err := killed.Kill(); err != nil {
			t.Fatal(err)
		}
		r.decode = append(r.decode[1:], r.node(instance.Decode, 5+k, longer))
	}
	close(stop)
	wg.Wait()
	reasons := refusals(t, r.proxies)
	t.Logf("complete %v; of them continued %v; lost %v, reasons %v", c.whole, c.moved, c.lost, reasons)
	lost := 0
	for kind, n := range c.lost {
		lost += n
		if kind != "chat, tools" {
			t.Errorf("%d streams of %s were lost", n, kind)
		}
	}
	for _, err := range c.wrong {
		t.Errorf("%.1500v", err)
	}
	if reasons["tool_call"] != lost || len(reasons) > min(lost, 1) {
		t.Errorf("%d streams were lost, reasons %v", lost, reasons)
	}
	moved := 0
	for _, n := range c.moved {
		moved += n
	}
	if moved == 0 {
		t.Error("no stream went on")
	}
}

// streams sends n requests for completions of the given length to the proxies, and returns a function
// that waits for their ends, and one that returns how many have ended.
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

// pdctl drain --move-after --wait returns while the streams go on elsewhere. PD_TEST_CONTINUE_CHECK has
// 50 streams of a minute.
func TestStreamsMoveOffDrainedNode(t *testing.T) {
	n, tokens := 50, 1500
	if os.Getenv("PD_TEST_CONTINUE_CHECK") == "" {
		n, tokens = 8, 300
	}
	etcd := testkit.StartEtcdProcess(t)
	r := build(t, plan{
		etcd: []string{etcd.Endpoint()}, proxies: 3, engineArgs: []string{"--vllm-version", "0.32.0", "--itl", "40ms"}, ttl: longer,
		proxyArgs: []string{"--continue-streams", "3"},
	})
	c := continued{whole: map[string]int{}, moved: map[string]int{}, lost: map[string]int{}}
	wait, ended := c.streams(t, r, n, tokens, fakevllm.Options{Models: []string{harness.Model}, Version: "0.32.0"})
	drained := r.decode[0]
	testkit.Eventually(t, soon, func() error {
		if k := runningOn(t, drained); k < n/3 {
			return fmt.Errorf("%d streams run on %s", k, drained.Address)
		}
		return nil
	})
	began := time.Now()
	r.mustPdctl("drain", "decode", drained.Address, "--move-after", "2s", "--wait", "--timeout", "60s")
	t.Logf("drained in %s", time.Since(began))
	if k := ended(); k > 0 {
		t.Errorf("%d streams had ended before: the drain has waited for them", k)
	}
	wait()
	t.Logf("complete %v; of them continued %v; lost %v", c.whole, c.moved, c.lost)
	for _, err := range c.wrong {
		t.Errorf("%.1500v", err)
	}
	if c.whole["completion"] != n || c.moved["completion"] < n/3 {
		t.Errorf("%d streams are complete, %d went on", c.whole["completion"], c.moved["completion"])
	}
}

// An instance with 300 streams is killed, and the rest has capacity for 200: these go on, and the others
// end with the error. PD_TEST_CONTINUE_CHECK runs it.
func TestStreamsContinueUpToCapacity(t *testing.T) {
	if os.Getenv("PD_TEST_CONTINUE_CHECK") == "" {
		t.Skip("make continue-check runs it (PD_TEST_CONTINUE_CHECK=5m)")
	}
	const n, capacity, tokens = 300, 200, 1500
	etcd := testkit.StartEtcdProcess(t)
	engine := []string{"--vllm-version", "0.32.0", "--itl", "60ms"}
	r := build(t, plan{
		etcd: []string{etcd.Endpoint()}, proxies: 3, prefill: 2, decode: 1, engineArgs: engine, ttl: longer,
		proxyArgs: []string{"--continue-streams", "3", "--scrape-interval", "1s"},
	})
	c := continued{whole: map[string]int{}, moved: map[string]int{}, lost: map[string]int{}}
	o := fakevllm.Options{Models: []string{harness.Model}, Version: "0.32.0"}
	waitStreams, _ := c.streams(t, r, n, tokens, o)
	killed := r.decode[0]
	testkit.Eventually(t, soon, func() error {
		if k := runningOn(t, killed); k < n {
			return fmt.Errorf("%d streams run on %s", k, killed.Address)
		}
		return nil
	})
	r.engineArgs = append(engine, "--max-num-seqs", strconv.Itoa(capacity))
	rest := r.node(instance.Decode, 2, longer)
	r.decode = append(r.decode, rest)
	r.awaitAll()
	if err := killed.Kill(); err != nil {
		t.Fatal(err)
	}
	waitStreams()
	t.Logf("complete %v; of them continued %v; lost %v, reasons %v", c.whole, c.moved, c.lost, refusals(t, r.proxies))
	for _, err := range c.wrong {
		t.Errorf("%.600v", err)
	}
	if c.moved["completion"] < capacity*9/10 || c.moved["completion"]+c.lost["completion"] != n {
		t.Errorf("%d streams went on, %d were lost", c.moved["completion"], c.lost["completion"])
	}
}
