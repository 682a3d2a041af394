package real_test

import (
	"bufio"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/require"

	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/sim/testkit/pieces"
)

// moving is a request whose stream loses its decode engine.
type moving struct {
	name, path string
	body       map[string]any
	ways       string // ways in which it may continue
}

// movings returns the requests of TestContinue. prompt returns the token ids of a lesson's prompt.
func movings(lessons []lesson, prompt func(*lesson) []int) (list []moving) {
	with := func(b map[string]any, name string, value any) map[string]any {
		b = maps.Clone(b)
		b[name] = value
		return b
	}
	for i := range lessons {
		l := &lessons[i]
		ways := "chat"
		if l.Tools != nil {
			ways = "chat replay" // "replay" inside a call
		}
		list = append(list, moving{"chat: " + l.Name, toChats, l.body(), ways})
	}
	text := func(l *lesson) map[string]any {
		return map[string]any{"model": model, "prompt": prompt(l), "temperature": 0, "max_tokens": 300}
	}
	thinks, letters := &lessons[0], &lessons[4]
	list = append(list,
		moving{"completion", toCompletions, text(thinks), "prompt"},
		moving{"completion: characters", toCompletions, text(letters), "prompt"},
		moving{"completion: several ids", toCompletions, with(text(letters), "stream_interval", 3), "prompt"},
		moving{"completion: stop string", toCompletions, with(text(thinks), "stop", []string{"its keys", "zzzzzz"}), "prompt"},
		moving{"chat: stop string", toChats, with(thinks.body(), "stop", []string{"its keys", "zzzzzz"}), "chat"},
		moving{"chat: json schema", toChats, with(with(thinks.body(), "response_format", map[string]any{"type": "json_schema", "json_schema": map[string]any{
			"name": "key", "schema": json.RawMessage(`{"type":"object","properties":{"key":{"type":"string","maxLength":60}},"required":["key"],"additionalProperties":false}`)}}),
			"max_tokens", 200), "replay"},
		moving{"completion: logprobs", toCompletions, with(text(thinks), "logprobs", 1), "prompt replay"},
		moving{"chat: logprobs", toChats, with(letters.body(), "logprobs", true), "chat replay"},
	)
	for i := range list {
		list[i].body["stream"], list[i].body["stream_options"] = true, map[string]any{"include_usage": true}
	}
	return append(list, moving{"responses: logprobs", "/v1/responses", map[string]any{"model": model, "input": thinks.Messages, "temperature": 0,
		"max_output_tokens": 300, "include": []string{"message.output_text.logprobs"}, "top_logprobs": 1, "stream": true}, "replay"})
}

// moved is a stream through the proxy.
type moved struct {
	answer
	decode    string
	continued int // comments at the seams
	err       error
}

// follow sends a request and returns its whole stream. It calls begun with the decode instance when the
// stream has begun, and each for each event.
func (r *rig) follow(url, id string, q *moving, begun func(decode string), each func()) (m moved) {
	raw, err := json.Marshal(q.body)
	if err != nil {
		return moved{err: err}
	}
	req, err := http.NewRequestWithContext(r.t.Context(), http.MethodPost, url+q.path, strings.NewReader(string(raw)))
	if err != nil {
		return moved{err: err}
	}
	req.Header = http.Header{"Content-Type": {"application/json"}, "X-Api-Key": {adminKey}, "X-Pd-Trace": {"1"}, "X-Request-Id": {id}}
	resp, err := r.http.Do(req)
	if err != nil {
		return moved{err: err}
	}
	defer resp.Body.Close()
	m.decode = resp.Header.Get("X-Pd-Decode")
	begun(m.decode)
	lines := bufio.NewScanner(resp.Body)
	lines.Buffer(nil, 1<<20)
	var list []pieces.Piece
	for lines.Scan() {
		data, isEvent := strings.CutPrefix(lines.Text(), "data: ")
		switch {
		case lines.Text() == ": continued":
			m.continued++
		case !isEvent:
		case data == "[DONE]":
			m.answer = pieces.Join(list)
			return m
		default:
			_, p, err := pieces.Read(data)
			if err != nil {
				return moved{decode: m.decode, err: fmt.Errorf("status %d, after %+v: %q: %w", resp.StatusCode, pieces.Join(list), data, err)}
			}
			if p != nil {
				list = append(list, *p)
				each()
				if p.Finish == "completed" {
					m.answer = pieces.Join(list)
					return m
				}
			}
		}
	}
	return moved{decode: m.decode, err: fmt.Errorf("status %d: the stream does not end: %w", resp.StatusCode, lines.Err())}
}

// killRounds is the minimum number of times that TestContinue ends an engine, each time later in the answers.
const killRounds = 7

// TestContinue ends a decode engine under streams of all kinds, several times, at different positions of the
// answers. The clients get the answers of a single vLLM.
func TestContinue(t *testing.T) {
	if short() {
		t.Skip("not part of the short form")
	}
	r := newRig(t)
	lessons := r.teach()
	r.more = []string{"--reasoning-parser", "qwen3"}
	alone, err := r.launch("alone", "")
	require.NoError(t, err)
	list := movings(lessons, func(l *lesson) []int {
		prompt, _ := r.pieces(alone.url(), toChats, l.body())
		return prompt
	})
	want := make([]moved, len(list))
	for i := range list {
		if want[i] = r.follow(alone.url(), "", &list[i], func(string) {}, func() {}); want[i].err != nil {
			t.Fatal(want[i].err)
		}
	}
	require.NoError(t, alone.Stop(t.Context()))
	r.adminKey, r.proxyArgs = adminKey, []string{"--continue-streams", "3", "--log-level", "debug"}
	engines := r.start(2)
	decodes := engines[1:]
	// The engine of a stream is random, and short streams may end before the engine does. Therefore rounds are
	// added until each stream was continued.
	for round := 0; round < killRounds || round < 2*killRounds && len(r.waysTaken(t)) < len(list); round++ {
		victim := r.killUnder(t, list, want, decodes, round)
		again, err := r.launch(fmt.Sprintf("decode-again-%d", round), instance.Decode)
		require.NoError(t, err)
		r.startAgent(again)
		decodes[victim] = again
		r.awaitDecodes(2)
	}
	ways := r.waysTaken(t)
	for i := range list {
		taken := ways[i]
		logf("%-26s continued %d times: %v", list[i].name, len(taken), count(taken))
		for _, way := range taken {
			if !slices.Contains(strings.Fields(list[i].ways), way) && way != "completed" {
				t.Errorf("%s continued by %s, not by %s", list[i].name, way, list[i].ways)
			}
		}
		if len(taken) == 0 {
			t.Errorf("%s was never continued", list[i].name)
		}
	}
}

// killUnder sends all requests at the same time, ends the decode engine of one of them after some events, and
// compares the answers. It returns the engine that has ended.
func (r *rig) killUnder(t *testing.T, list []moving, want []moved, decodes []*engine, round int) (victim int) {
	t.Helper()
	first := round % len(list)
	after := 4 + 11*(round%killRounds)
	decided, due := make(chan string, 1), make(chan struct{})
	got := make([]moved, len(list))
	done := make(chan int)
	for i := range list {
		go func() {
			begun, each := func(string) {}, func() {}
			if i == first {
				n := 0
				begun = func(decode string) { decided <- decode }
				each = func() {
					if n++; n == after {
						close(due)
					}
				}
			}
			got[i] = r.follow(r.proxy.URL(), requestID(round, i), &list[i], begun, each)
			if i == first {
				select {
				case decided <- "": // the request failed before it began
				default:
				}
			}
			done <- i
		}()
	}
	decode, left := <-decided, len(list)
	for victim = range decodes {
		if strings.Contains(decode, decodes[victim].address) {
			break
		}
	}
	for waiting := true; waiting; {
		select {
		case <-due:
			waiting = false
		case i := <-done:
			left--
			waiting = i != first // this stream may be shorter
		}
	}
	how, err := endEngine(decodes[victim], round)
	if err != nil {
		t.Error(err)
	}
	for ; left > 0; left-- {
		<-done
	}
	continued := 0
	for i := range list {
		g, w := got[i], want[i]
		continued += g.continued
		if g.err != nil {
			t.Errorf("round %d, %s: %v", round, list[i].name, g.err)
			continue
		}
		if list[i].path == "/v1/responses" {
			dropReasoning(&w.answer)
			dropReasoning(&g.answer)
		}
		if d := cmp.Diff(w.answer, g.answer); d != "" {
			t.Errorf("round %d, %s, continued %d times: %s", round, list[i].name, g.continued, d)
		}
	}
	logf("round %d: "+how+" after event %d of %s: %d of %d streams continued", round, after, list[first].name, continued, len(list))
	return victim
}

// endEngine kills an engine or its worker, or terminates it so that its API server ends streams with an
// error.
func endEngine(e *engine, round int) (how string, err error) {
	switch round {
	case 2:
		pid, err := worker(e.Process)
		if err != nil {
			return "", err
		}
		return "worker killed", syscall.Kill(pid, syscall.SIGKILL)
	case 4:
		return "terminated", syscall.Kill(e.PID(), syscall.SIGTERM)
	}
	return "killed", syscall.Kill(-e.PID(), syscall.SIGKILL)
}

func requestID(round, i int) string { return fmt.Sprintf("moving-%d-%d", round, i) }

// waysTaken reads from the proxy's log the ways in which the streams of each request continued.
func (r *rig) waysTaken(t *testing.T) map[int][]string {
	t.Helper()
	raw, err := os.ReadFile(r.proxy.LogFile())
	require.NoError(t, err)
	how, id := regexp.MustCompile(`how"?[=:]"?([a-z]+)`), regexp.MustCompile(`moving-\d+-(\d+)`)
	out := map[int][]string{}
	for line := range strings.Lines(string(raw)) {
		if !strings.Contains(line, "stream continued on another leg") {
			continue
		}
		h, of := how.FindStringSubmatch(line), id.FindStringSubmatch(line)
		if h == nil || of == nil {
			t.Errorf("log line %q", line)
			continue
		}
		var i int
		if _, err := fmt.Sscan(of[1], &i); err != nil {
			t.Fatal(err)
		}
		out[i] = append(out[i], h[1])
	}
	return out
}

func count(list []string) map[string]int {
	out := map[string]int{}
	for _, s := range list {
		out[s]++
	}
	return out
}

// dropReasoning removes the tokens with logprobs up to the end of the reasoning. /v1/responses has them only
// if the engine sends the end of the reasoning and the start of the text at once: the logprobs of a text
// delta are those of all tokens of the engine's output (vllm/entrypoints/openai/responses/serving.py,
// _create_stream_response_logprobs).
func dropReasoning(a *answer) {
	if end := slices.Index(a.Logged, "</think>"); end >= 0 {
		a.Logged = a.Logged[end+1:]
	}
}
