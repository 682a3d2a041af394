package robustness

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/pdmesh/pdmesh/sim/fakevllm"
	"github.com/pdmesh/pdmesh/sim/loadgen"
	"github.com/pdmesh/pdmesh/sim/testkit/sseanswer"
)

const (
	clients = 12
	// flood is the number of clients of a run with a queue, engineRate the number of prompt tokens per
	// second of each of its engines, and queueLength --queue-length.
	flood       = 48
	engineRate  = 400
	queueLength = 12
	patient     = 60 * time.Second // after which a client gives up
)

// The routes that generate.
const (
	completions = "/v1/completions"
	chat        = "/v1/chat/completions"
	responses   = "/v1/responses"
	messages    = "/v1/messages"
	generate    = "/inference/v1/generate"
)

// load is the traffic of a run: clients that send one request after the other to all proxies.
type load struct {
	r      *rig
	client *loadgen.Client
	urls   map[string]string // of the proxies by name, through their links
	plain  *http.Client
	models []string
	stop   context.CancelFunc
	wg     sync.WaitGroup

	mu   sync.Mutex // guards open
	open map[string]time.Time
}

func (r *rig) startLoad() *load {
	ctx, stop := context.WithCancel(context.WithoutCancel(r.t.Context()))
	l := &load{
		r: r, stop: stop, models: []string{ModelA}, open: map[string]time.Time{}, urls: map[string]string{},
		client: loadgen.NewClient(flood, nil),
		plain:  &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: flood}},
	}
	for _, e := range r.plan.Engines {
		if slices.Contains(e.Models, ModelB) {
			l.models = []string{ModelA, ModelA, ModelA, ModelB}
		}
	}
	if r.plan.Adapters {
		l.models = append(l.models, Adapter)
	}
	for _, p := range r.proxies {
		l.urls[p.name] = "http://" + r.links[p.name+ClientLink].Address()
	}
	n := clients
	if r.h.QueueLength > 0 {
		n = flood
	}
	for c := range n {
		l.wg.Go(func() {
			rnd := rand.New(rand.NewPCG(r.plan.Seed, uint64(c))) //nolint:gosec // a seed repeats a run
			for i := 0; ctx.Err() == nil; i++ {
				l.one(rnd, fmt.Sprintf("c%d-r%d", c, i), 0, nil)
				hold(ctx, time.Duration(20+rnd.IntN(60))*time.Millisecond)
			}
		})
	}
	l.wg.Go(func() { l.idle(ctx) })
	return l
}

// admits returns nil if each model's queue of a proxy admits a request of the lowest class at once.
func (l *load) admits(ctx context.Context, p *proxy) error {
	for _, model := range slices.Compact(slices.Sorted(slices.Values(l.models))) {
		q := Request{ID: "last-" + p.name, Route: completions, Model: model, Class: "batch", Timeout: 10 * time.Second}
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, p.url()+q.Route, bytes.NewReader(q.body("the last one", 2)))
		if err != nil {
			return err
		}
		req.Header = q.headers()
		res, err := l.r.http.Do(req)
		if err != nil {
			return err
		}
		raw, err := io.ReadAll(res.Body)
		_ = res.Body.Close()
		if q.header(res.Header); err != nil || res.StatusCode != http.StatusOK || q.Queued > promptly {
			return fmt.Errorf("%s: status %d after %s in the queue (%v): %.300s", model, res.StatusCode, q.Queued, err, raw)
		}
	}
	return nil
}

// idle opens connections to each proxy that send nothing.
func (l *load) idle(ctx context.Context) {
	for _, p := range l.r.proxies {
		for range 5 {
			if c, err := net.Dial("tcp", "127.0.0.1:"+strconv.Itoa(p.port)); err == nil {
				defer c.Close()
			}
		}
	}
	<-ctx.Done()
}

// finish waits until no request from before the given time is open, stops the clients and waits for them.
func (l *load) finish(before time.Time) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(l.r.t.Context()), patient)
	defer cancel()
	_ = l.r.await(ctx, func() error { // an open request is judged when its client gives up
		l.mu.Lock()
		defer l.mu.Unlock()
		for _, since := range l.open {
			if since.Before(before) {
				return errors.New("requests from before the end of the faults are open")
			}
		}
		return nil
	})
	l.stop()
	l.wg.Wait()
	l.client.Close()
	l.plain.CloseIdleConnections()
}

// long sends requests that run longer than a proxy takes to publish their end. One proxy gets the longest
// ones, so that a drain which does not wait for this proxy ends too early.
func (l *load) long(name string, which int) {
	proxies := l.r.proxies
	for i := range 18 {
		proxy, tokens := proxies[which%len(proxies)], longest/2*3
		if i%3 == 2 {
			proxy, tokens = proxies[(which+1+i/3%2)%len(proxies)], longest/4
		}
		l.wg.Go(func() {
			id := fmt.Sprintf("%s-%d", name, i)
			l.one(rand.New(rand.NewPCG(l.r.plan.Seed, uint64(i))), id, tokens, proxy) //nolint:gosec // a seed repeats a run
		})
	}
}

// firstDrain is the time after the start in which all long requests are those of long, for the first drain.
const firstDrain = 4 * time.Second

// longest is the number of tokens of a long answer: more than 3 s.
const longest = 1600

// one sends one request and records it. The number of tokens is random if it is 0.
func (l *load) one(rnd *rand.Rand, id string, tokens int, p *proxy) {
	if p == nil {
		p = l.r.proxies[rnd.IntN(len(l.r.proxies))]
	}
	q := Request{ID: id, Proxy: p.name, Model: l.models[rnd.IntN(len(l.models))], Stream: rnd.IntN(3) > 0}
	q.Route = []string{completions, completions, completions, chat, chat, responses, messages, generate}[rnd.IntN(8)]
	if tokens == 0 {
		tokens = 8 + rnd.IntN(40)
		if rnd.IntN(16) == 0 && time.Since(l.r.h.Start) > firstDrain {
			tokens = []int{longest / 2, longest}[rnd.IntN(2)]
		}
	}
	body := q.body(fmt.Sprintf("%s says: %s", id, strings.Repeat("this is a line of a prompt ", 1+rnd.IntN(30))), tokens)
	answers, err := fakevllm.ExpectedAt(q.Route, body, 0)
	if err != nil {
		l.r.fail(err)
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), patient)
	defer cancel()
	leaves := rnd.IntN(20) == 0
	if leaves {
		timer := time.AfterFunc(time.Duration(rnd.IntN(60))*time.Millisecond, cancel)
		defer timer.Stop()
	}
	if l.r.h.QueueLength > 0 {
		q.Class, q.Timeout = queueClasses[rnd.IntN(len(queueClasses))], time.Duration(1+rnd.IntN(8))*time.Second
		q.Prompt, q.Output = answers[0].PromptTokens, tokens
	}
	q.From = time.Now()
	l.mu.Lock()
	l.open[id] = q.From
	l.mu.Unlock()
	switch {
	case q.Stream && (q.Route == completions || q.Route == chat):
		l.stream(ctx, p, &q, body, answers[0])
	default:
		l.other(ctx, p, &q, body, answers[0])
	}
	if leaves && ctx.Err() != nil && q.Outcome != OK && q.Outcome != Wrong {
		q.Outcome = Aborted
	} else if ctx.Err() != nil && q.Outcome != OK && q.Outcome != Wrong {
		q.Outcome = TimedOut
	}
	if m := refusal.FindStringSubmatch(q.Err); m != nil && q.Class != "" && q.Outcome == Failed {
		q.Outcome, q.Reason = Refused, m[1]
	}
	q.To = time.Now()
	l.mu.Lock()
	delete(l.open, id)
	l.mu.Unlock()
	l.r.record(func(h *History) { h.Requests = append(h.Requests, q) })
}

// refusal matches the reason of a refusal by the queue.
var refusal = regexp.MustCompile(`^status (?:429|503): .*\((predicted_wait|deadline|queue_full|stopping)\)`)

// headers returns the header of a request.
func (q *Request) headers() http.Header {
	h := http.Header{"Content-Type": {"application/json"}, "X-Request-Id": {q.ID}}
	if q.Class != "" {
		h["X-Priority"], h["X-Request-Timeout"] = []string{q.Class}, []string{strconv.Itoa(int(q.Timeout.Seconds()))}
	}
	return h
}

// body returns the body of a request.
func (q *Request) body(prompt string, tokens int) []byte {
	m := map[string]any{"model": q.Model, "stream": q.Stream}
	switch q.Route {
	case completions:
		m["prompt"], m["max_tokens"], m["ignore_eos"] = prompt, tokens, true
	case chat:
		m["messages"], m["max_tokens"], m["ignore_eos"] = []map[string]string{{"role": "user", "content": prompt}}, tokens, true
	case responses:
		m["input"], m["max_output_tokens"] = prompt, tokens
	case messages:
		m["messages"], m["max_tokens"] = []map[string]string{{"role": "user", "content": prompt}}, tokens
	case generate:
		q.Stream, m["stream"] = false, false
		ids := make([]int, 0, len(prompt))
		for _, b := range []byte(prompt) {
			ids = append(ids, int(b))
		}
		m["token_ids"], m["sampling_params"] = ids, map[string]any{"max_tokens": tokens, "ignore_eos": true}
	}
	if q.Stream && (q.Route == completions || q.Route == chat) {
		m["stream_options"] = map[string]bool{"include_usage": true}
	}
	raw, err := json.Marshal(m)
	if err != nil {
		panic(err) // texts and numbers
	}
	return raw
}

// header records the trace headers of an answer.
func (q *Request) header(h http.Header) {
	q.Prefill, q.Decode, q.Alone = h.Get("X-Pd-Prefill"), h.Get("X-Pd-Decode"), h.Get("X-Pd-Decode-Only")
	q.Revision, _ = strconv.ParseInt(h.Get("X-Pd-Revision"), 10, 64) // absent from answers of proxies without a pick
	if n := h.Get("X-Pd-Attempts"); n == "0" {
		q.Attempts = -1
	} else {
		q.Attempts, _ = strconv.Atoi(n)
	}
	if text, ok := strings.CutPrefix(h.Get("X-Pd-Timing"), "queue;dur="); ok {
		ms, _, _ := strings.Cut(text, ",")
		q.Queued, _ = time.ParseDuration(ms + "ms") // only set by proxies
	}
}

// stream sends a streaming request whose answer loadgen checks.
func (l *load) stream(ctx context.Context, p *proxy, q *Request, body []byte, want fakevllm.Answer) {
	res := l.client.Stream(ctx, l.urls[p.name]+q.Route, q.headers(), body, loadgen.Expected{
		Text: []byte(want.Text), PromptTokens: want.PromptTokens, CompletionTokens: len(want.Tokens), FinishReason: want.FinishReason,
	}, loadgen.Observer{})
	q.header(res.Header)
	switch {
	case res.Err == nil:
		q.Outcome = OK
	case errors.Is(res.Err, loadgen.ErrWrong):
		q.Outcome = Wrong
	case res.TTFT > 0:
		q.Outcome = Broken
	case strings.HasPrefix(res.Err.Error(), "status ") || strings.HasPrefix(res.Err.Error(), "an error event"):
		q.Outcome = Failed
	default:
		q.Outcome = Transport
	}
	if res.Err != nil {
		q.Err = res.Err.Error()
	}
}

// other sends a request that is not streamed, or a stream of one of the agents' APIs.
func (l *load) other(ctx context.Context, p *proxy, q *Request, body []byte, want fakevllm.Answer) {
	end := func(o Outcome, format string, args ...any) { q.Outcome, q.Err = o, fmt.Sprintf(format, args...) }
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, l.urls[p.name]+q.Route, bytes.NewReader(body))
	if err != nil {
		l.r.fail(err)
		return
	}
	req.Header = q.headers()
	req.GetBody = nil // the client library must not send it again
	res, err := l.plain.Do(req)
	if err != nil {
		end(Transport, "%v", err)
		return
	}
	defer res.Body.Close()
	q.header(res.Header)
	raw, err := io.ReadAll(res.Body)
	switch {
	case res.StatusCode == http.StatusOK && q.Stream:
		judge(raw, err, &want, end)
	case err != nil: // the header was there, so this is a visible end of a committed answer
		end(Broken, "%v", err)
	case res.StatusCode != http.StatusOK:
		end(Failed, "status %d: %.300s", res.StatusCode, raw)
	case !right(q.Route, raw, want):
		end(Wrong, "%.300s", raw)
	default:
		end(OK, "")
	}
}

// right reports whether a whole answer is the expected one.
func right(route string, raw []byte, want fakevllm.Answer) bool {
	type texts []struct{ Text string }
	var a struct {
		Choices []struct {
			Text     string
			Message  struct{ Content string }
			TokenIDs []int `json:"token_ids"`
		}
		Output  []struct{ Content texts }
		Content texts
	}
	if err := json.Unmarshal(raw, &a); err != nil {
		return false
	}
	if route == generate {
		return len(a.Choices) == 1 && slices.Equal(a.Choices[0].TokenIDs, want.Tokens)
	}
	var got strings.Builder
	for _, c := range a.Choices {
		got.WriteString(c.Text + c.Message.Content)
	}
	for _, o := range a.Output {
		for _, c := range o.Content {
			got.WriteString(c.Text)
		}
	}
	for _, c := range a.Content {
		got.WriteString(c.Text)
	}
	return got.String() == want.Text
}

// judge compares a stream of /v1/responses or /v1/messages with the expected answer; err is how it ended.
func judge(raw []byte, err error, want *fakevllm.Answer, end func(Outcome, string, ...any)) {
	got, parse := sseanswer.Read(string(raw[:bytes.LastIndexByte(raw, '\n')+1])) // without a line that was cut
	switch differs := got.Differs(want, false); {
	case parse != nil:
		end(Wrong, "%v", parse)
	case differs == nil:
		end(OK, "")
	case !strings.HasPrefix(want.Text, got.Text):
		end(Wrong, "text %.60q... is not that of %.60q...", got.Text, want.Text)
	case got.Error != "" && got.Text == "":
		end(Failed, "%.300s", got.Error)
	case got.Error != "":
		end(Broken, "%.300s", got.Error)
	case err == nil || got.Done > 0:
		end(Wrong, "the stream ended (%v): %v", err, differs)
	case got.Text == "":
		end(Transport, "%v", err)
	default:
		end(Broken, "%v", err)
	}
}
