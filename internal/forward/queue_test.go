package forward_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pdmesh/pdmesh/internal/forward"
	"github.com/pdmesh/pdmesh/internal/forward/relay"
	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/internal/openai"
	"github.com/pdmesh/pdmesh/internal/sched"
	"github.com/pdmesh/pdmesh/internal/sched/admission"
	"github.com/pdmesh/pdmesh/internal/sched/estimate"
	"github.com/pdmesh/pdmesh/internal/sched/keylimit"
	"github.com/pdmesh/pdmesh/internal/sched/policy"
	"github.com/pdmesh/pdmesh/sim/fakevllm"
	"github.com/pdmesh/pdmesh/sim/testkit"
)

// observer counts the reports of the queue.
type observer struct {
	mu   sync.Mutex
	seen map[string]int
}

func (o *observer) count(format string, args ...any) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.seen == nil {
		o.seen = map[string]int{}
	}
	o.seen[fmt.Sprintf(format, args...)]++
}

func (o *observer) Waited(c admission.Class, _ time.Duration)    { o.count("%s waited", c) }
func (o *observer) NotAdmitted(c admission.Class, reason string) { o.count("%s refused %s", c, reason) }
func (o *observer) Observed(c admission.Class, result string)    { o.count("%s would %s", c, result) }
func (o *observer) Predicted(float64)                            {}
func (o *observer) of(what string) int                           { o.mu.Lock(); defer o.mu.Unlock(); return o.seen[what] }
func queuedLine(each float64) estimate.Line                      { return estimate.Line{Each: each, Samples: 99} }
func occupy(r *rig, tokens int64)                                { prefillLoad(r).Waiting.Add(tokens) }
func prefillLoad(r *rig) *policy.Load                            { return r.sched.Usable(instance.Prefill, model, nil)[0].Load }

// newQueues returns the queues of the rig that r will point to. They admit one prompt at a time: each token
// is predicted to take 10 s.
func newQueues(t *testing.T, r **rig, mode admission.Mode, tune func(*admission.Options)) (*admission.Queues, *observer) {
	t.Helper()
	seen := new(observer)
	o := admission.Options{
		Mode: mode, MaxWaiting: 100, MaxBytes: 1 << 20, Observer: seen,
		Rates: func(string, string) estimate.Rates {
			return estimate.Rates{Prefill: queuedLine(10), Transfer: queuedLine(0), Token: queuedLine(0), Output: 10, Uncached: 10}
		},
		Tokens: func(m string, bytes int) int { return (*r).sched.Tokens(m, bytes) },
		Engines: func(m string, labels instance.Selector) (prefill, decode []admission.Engine) {
			of := func(role instance.Role) (list []admission.Engine) {
				for _, c := range (*r).sched.Usable(role, m, labels) {
					list = append(list, admission.Engine{Address: sched.AddressOf(c.Instance, c.Rank), Load: c.Load})
				}
				return list
			}
			return of(instance.Prefill), of(instance.Decode)
		},
	}
	if tune != nil {
		tune(&o)
	}
	queues := admission.New(o)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); queues.Run(ctx) }()
	t.Cleanup(func() { cancel(); <-done })
	return queues, seen
}

// startQueue is start with one pair and a queue.
func startQueue(t *testing.T, mode admission.Mode, tune func(*admission.Options)) (*rig, *admission.Queues, *observer) {
	t.Helper()
	return startQueueTuned(t, mode, tune, func(*forward.Options) {})
}

func startQueueTuned(t *testing.T, mode admission.Mode, tune func(*admission.Options), more func(*forward.Options)) (*rig, *admission.Queues, *observer) {
	t.Helper()
	var r *rig
	queues, seen := newQueues(t, &r, mode, tune)
	r = startTuned(t, fakevllm.NIXL, 1, 1, tuning{
		forward: func(o *forward.Options) {
			more(o)
			o.Queue = queues
			o.KeyName = func(r *http.Request) string { return r.Header.Get("X-Key") }
			o.Class = func(r *http.Request) (is, highest admission.Class) {
				highest, _ = admission.ParseClass(r.Header.Get("X-Highest"))
				return admission.Default, min(highest, admission.Default)
			}
		},
		sched: prefixPolicy(t),
	})
	return r, queues, seen
}

// waiting waits until want requests are queued.
func waiting(t *testing.T, q *admission.Queues, want int) {
	t.Helper()
	waitingFor(t, q, model, want)
}

func waitingFor(t *testing.T, q *admission.Queues, model string, want int) {
	t.Helper()
	testkit.Eventually(t, waitLimit, func() error {
		for _, s := range q.Status() {
			if n := s.Waiting["interactive"] + s.Waiting["default"] + s.Waiting["batch"]; n == want && s.Model == model {
				return nil
			}
		}
		return fmt.Errorf("%+v", q.Status())
	})
}

const queuedPath = "/v1/completions"

func queuedBody(name string) string {
	return `{"model":"m","max_tokens":2,"prompt":"` + name + strings.Repeat(" word", 20) + `"}`
}

// sendQueued sends requests in this order, and returns the names of their prompts in the order in which
// prefill got them. Names are class/key/n.
func sendQueued(t *testing.T, r *rig, q *admission.Queues, names ...string) []string {
	t.Helper()
	occupy(r, 1000)
	var clients sync.WaitGroup
	for i, name := range names {
		class, rest, _ := strings.Cut(name, "/")
		key, _, _ := strings.Cut(rest, "/")
		clients.Go(func() {
			a := r.post(queuedPath, queuedBody(name), "X-Priority", class, "X-Key", key, "X-Highest", "interactive")
			assert.Equal(t, http.StatusOK, a.status, "%s: %s", name, a.body)
		})
		waiting(t, q, i+1)
	}
	r.P[0].ForgetRequests()
	occupy(r, -1000)
	q.Wake()
	clients.Wait()
	var order []string
	for _, one := range r.P[0].Requests() {
		for _, name := range names {
			if strings.Contains(string(one.Body), `"`+name+" word") {
				order = append(order, name)
			}
		}
	}
	return order
}

// Requests go by class, within a class to the key with the least service, within a key by arrival.
func TestQueueOrder(t *testing.T) {
	t.Parallel()
	r, q, seen := startQueue(t, admission.On, nil)
	got := sendQueued(t, r, q, "batch/a/1", "default/a/1", "default/a/2", "default/a/3", "default/b/1", "default/b/2", "interactive/c/1", "batch/a/2")
	want := "interactive/c/1 default/a/1 default/b/1 default/a/2 default/b/2 default/a/3 batch/a/1 batch/a/2"
	assert.Equal(t, want, strings.Join(got, " "), got)
	assert.True(t, seen.of("default waited") == 5 && seen.of("batch waited") == 2 && seen.of("interactive waited") == 1,
		"%v", seen.seen)
}

// While no prefill instance can be reached, requests wait for decode, which computes their prompts.
func TestQueueWithoutPrefill(t *testing.T) {
	t.Parallel()
	var r *rig
	q, _ := newQueues(t, &r, admission.On, nil)
	r = startTuned(t, fakevllm.NIXL, 1, 1, tuning{
		forward: func(o *forward.Options) { o.Queue = q },
		sched:   func(o *sched.Options) { o.PrefillOptional = true },
	})
	r.P[0].Kill()
	r.tracker.Eject(r.sched.Usable(instance.Prefill, model, nil)[0].Instance, "killed")
	decode := r.sched.Usable(instance.Decode, model, nil)[0].Load
	decode.Waiting.Add(1000)
	answered := async(func() answer { return r.post(queuedPath, queuedBody("x")) })
	waiting(t, q, 1)
	decode.Waiting.Add(-1000)
	q.Wake()
	(<-answered).check(t, http.StatusOK)
}

// In mode observe, every request passes at once, and the decisions of the queue are only counted.
func TestQueueObserve(t *testing.T) {
	t.Parallel()
	r, _, seen := startQueue(t, admission.Observe, nil)
	post := func(want string, header ...string) {
		t.Helper()
		before := seen.of(want)
		if a := r.post(queuedPath, queuedBody("x"), header...); a.status != http.StatusOK || seen.of(want) != before+1 {
			t.Errorf("%s: %d %s, %v", want, a.status, a.body, seen.seen)
		}
	}
	post("default would pass")
	post("default would pass", "X-Priority", "nonsense", "X-Request-Timeout", "nonsense")
	occupy(r, 1000)
	defer occupy(r, -1000)
	post("default would wait")
	r.sched.Loads.SetEngine(r.sched.Usable(instance.Prefill, model, nil)[0].Instance.Key, &policy.Engine{
		At: time.Now(), Ranks: []policy.Rank{{Waiting: 3}}, All: policy.Rank{Waiting: 3},
	})
	post("batch would refuse", "X-Priority", "batch")
}

// The request of a client that leaves is removed, requests that generate nothing bypass the queue, and
// waiting ones get 503 when the proxy stops.
func TestQueueLeaveAndStop(t *testing.T) {
	t.Parallel()
	r, q, seen := startQueue(t, admission.On, nil)
	occupy(r, 1000)
	defer occupy(r, -1000)
	ctx, leave := context.WithCancel(t.Context())
	left := make(chan struct{})
	go func() {
		defer close(left)
		r.postCtx(ctx, queuedPath, queuedBody("x")).check(t, 0)
	}()
	waiting(t, q, 1)
	leave()
	<-left
	waiting(t, q, 0)
	if e := r.entry(); e.Outcome != relay.OutcomeClientGone || e.Refused != "" {
		t.Errorf("%+v", e)
	}
	r.post("/tokenize", `{"model":"m","prompt":"x"}`).check(t, http.StatusOK)
	r.entry()
	r.post(queuedPath, `{"model":"m","prompt":"x","max_tokens":-1}`).check(t, http.StatusBadRequest)
	r.entry()
	answered := async(func() answer { return r.post(queuedPath, queuedBody("x")) })
	waiting(t, q, 1)
	q.Close()
	for range 2 {
		a := <-answered
		if e := r.entry(); a.status != http.StatusServiceUnavailable || a.header.Get("Retry-After") == "" || e.Refused != admission.ReasonStopping {
			t.Errorf("%d %v %s, %+v", a.status, a.header, a.body, e)
		}
		answered <- r.post(queuedPath, queuedBody("x"))
	}
	assert.Equal(t, 3, seen.of("default refused stopping"), seen.seen)
}

// A request that would wait too long is refused at once, if the engines report that they are full.
func TestQueueRefuses(t *testing.T) {
	t.Parallel()
	r, q, _ := startQueue(t, admission.On, nil)
	occupy(r, 100)
	defer occupy(r, -100)
	var clients sync.WaitGroup
	ctx, leave := context.WithCancel(t.Context())
	defer func() { leave(); clients.Wait() }()
	wait := func(n int, class string) {
		clients.Go(func() {
			r.postCtx(ctx, queuedPath, queuedBody("x"), "X-Priority", class).check(t, 0)
		})
		waiting(t, q, n)
	}
	wait(1, "default")
	wait(2, "default") // predictions alone refuse no request
	r.sched.Loads.SetEngine(r.sched.Usable(instance.Prefill, model, nil)[0].Instance.Key, &policy.Engine{
		At: time.Now(), Ranks: []policy.Rank{{Running: 1}}, All: policy.Rank{Running: 1},
	})
	a := r.post(queuedPath, queuedBody("y"), "X-Request-Timeout", "20")
	after, err := strconv.Atoi(a.header.Get("Retry-After"))
	if a.status != http.StatusTooManyRequests || err != nil || after <= 60 || a.header.Get("X-Should-Retry") != "false" ||
		!strings.Contains(string(a.body), `"code":429`) || !strings.Contains(string(a.body), admission.ReasonWait) {
		t.Errorf("%d %v %s", a.status, a.header, a.body)
	}
	if e := r.entry(); e.Refused != admission.ReasonWait || e.Outcome != relay.OutcomeClientError || e.Prefill != "" {
		t.Errorf("%+v", e)
	}
	wait(3, "batch") // its predicted wait is as long, but within its deadline
	for _, header := range [][]string{{"X-Priority", "urgent"}, {"X-Request-Timeout", "0"}, {"X-Request-Timeout", "3601"}, {"X-Request-Timeout", "soon"}, {"X-Request-Timeout", "NaN"}} {
		if a := r.post(queuedPath, queuedBody("y"), header...); a.status != http.StatusBadRequest || !strings.Contains(string(a.body), header[0]) {
			t.Errorf("%v: %d %s", header, a.status, a.body)
		}
	}
}

// slowHeader is a client that takes 20 intervals of the keep-alives to return its header to
// answerNotAdmitted.
type slowHeader struct {
	forward.Client
	once    sync.Once
	writes  atomic.Int64
	written atomic.Int64 // during the wait
}

func (c *slowHeader) Header() http.Header {
	if strings.Contains(string(debug.Stack()), "answerNotAdmitted") {
		c.once.Do(func() {
			before := c.writes.Load()
			time.Sleep(20 * often)
			c.written.Store(c.writes.Load() - before)
		})
	}
	return c.Client.Header()
}

func (c *slowHeader) Write(b []byte) (int, error) {
	c.writes.Add(1)
	return c.Client.Write(b)
}

// Keep-alives of a stream end before the proxy changes the header of its refusal: both write the same map.
func TestQueueRefuses_KeepAlive(t *testing.T) {
	t.Parallel()
	r, _, _ := startQueueTuned(t, admission.On, nil, func(o *forward.Options) { o.KeepAlive = often })
	occupy(r, 100)
	defer occupy(r, -100)
	r.sched.Loads.SetEngine(r.sched.Usable(instance.Prefill, model, nil)[0].Instance.Key, &policy.Engine{
		At: time.Now(), Ranks: []policy.Rank{{Running: 1}}, All: policy.Rank{Running: 1},
	})
	req := httptest.NewRequestWithContext(t.Context(), http.MethodPost, queuedPath, strings.NewReader(`{"stream":true,`+queuedBody("y")[1:]))
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("X-Request-Timeout", "20")
	c := &slowHeader{Client: relay.Std(httptest.NewRecorder())}
	func() {
		defer func() { _ = recover() }() // http.ErrAbortHandler, if a keep-alive was sent before
		r.handler.Completion(openai.Completion)(c, req)
	}()
	if e := r.entry(); e.Refused != admission.ReasonWait || c.Header().Get("X-Should-Retry") != "false" || c.written.Load() != 0 {
		t.Errorf("%d keep-alives meanwhile, header %v, entry %+v", c.written.Load(), c.Header(), e)
	}
}

// A request that all engines refuse as busy is sent again until one accepts it or its deadline passes.
func TestQueueAgain(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name, timeout string
		mode          admission.Mode
		role          instance.Role
		times         int // number of refusals by the engine
		waiting       int // maximum number of waiting requests
		status        int
	}{
		{"prefill", "100", admission.On, instance.Prefill, 4, 1, http.StatusOK},
		{"decode", "100", admission.On, instance.Decode, 4, 1, http.StatusOK},
		{"no time left", "1", admission.On, instance.Prefill, 1000, 1, http.StatusTooManyRequests},
		{"no more may wait", "100", admission.On, instance.Prefill, 1000, 0, http.StatusTooManyRequests},
		{"observe", "100", admission.Observe, instance.Prefill, 1000, 1, http.StatusTooManyRequests},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			r, _, _ := startQueue(t, tt.mode, func(o *admission.Options) { o.MaxWaiting = tt.waiting })
			engine := r.engines(tt.role)[0]
			script(t, engine, fakevllm.Fault{Kind: fakevllm.FaultStatus, Status: http.StatusTooManyRequests, Times: tt.times})
			a := r.post(queuedPath, queuedBody("x"), "X-Request-Timeout", tt.timeout)
			if refused := engine.Counters().Faults; a.status != tt.status || tt.status == http.StatusOK && refused != int64(tt.times) {
				t.Errorf("%d %s, refused %d times", a.status, a.body, refused)
			}
			if e := r.entry(); tt.status == http.StatusOK && (e.Outcome != relay.OutcomeOK || e.Failed != tt.times || e.DecodeOnly != "") {
				t.Errorf("%+v", e)
			}
		})
	}
}

// A request that is to be sent again ends at once if its client leaves or the proxy stops.
func TestQueueAgain_Ends(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ name, body, outcome string }{
		{"client leaves", "", relay.OutcomeClientGone},
		{"proxy stops", "this proxy is stopping", relay.OutcomeUnavailable},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			r, q, _ := startQueue(t, admission.On, nil)
			engine := r.D[0]
			script(t, engine, fakevllm.Fault{Kind: fakevllm.FaultStatus, Status: http.StatusTooManyRequests})
			ctx, leave := context.WithCancel(t.Context())
			defer leave()
			var client sync.WaitGroup
			client.Go(func() {
				a := r.postCtx(ctx, queuedPath, queuedBody("x"))
				if a.status != 0 && (a.err != nil || tt.body == "" || a.status != http.StatusServiceUnavailable ||
					a.header.Get("Retry-After") == "" || !strings.Contains(string(a.body), tt.body)) {
					t.Errorf("%d %q %s %v", a.status, a.header, a.body, a.err)
				}
			})
			testkit.Eventually(t, waitLimit, func() error {
				if engine.Counters().Faults < 6 { // then it waits at least 2 s
					return errors.New("not refused")
				}
				return nil
			})
			testkit.EventuallyEqual(t, waitLimit, prefillLoad(r).InFlight.Load, 0, "requests at prefill while it waits")
			if tt.body == "" {
				leave()
			} else {
				q.Close()
			}
			client.Wait()
			e := r.entry()
			assert.Equal(t, tt.outcome, e.Outcome, "%+v", e)
		})
	}
}

// A request that continues a stored response is sent again, too, when the engine that has it is busy.
func TestQueueAgain_StoredResponse(t *testing.T) {
	t.Parallel()
	r, _, _ := startQueue(t, admission.On, nil)
	id := r.stored("")
	r.script(r.D[0], fakevllm.Fault{Kind: fakevllm.FaultStatus, Status: http.StatusTooManyRequests, Times: 4})
	a := r.post(responsesPath, agentBody(responsesPath, false, `,"previous_response_id":"`+id+`"`))
	a.check(t, http.StatusOK)
}

// A request that falls back to another target of its model route waits for that target's engines. If they are
// busy too, it begins again with the first target.
func TestQueue_ModelRoute(t *testing.T) {
	t.Parallel()
	const first, second = "new", "old"
	for _, tt := range []struct {
		name    string
		refuse  map[string]int // number of 429 answers by model
		busy    string         // model whose prefill is busy
		waiting int            // maximum number of waiting requests
		waits   string
		want    string
		drained string // model whose instances drain; "" for none
		refused string // the reason, if none serves it
	}{
		{name: "waits for the second", refuse: map[string]int{first: 1000}, busy: second, waiting: 1, waits: second, want: second},
		{name: "returns to the first", refuse: map[string]int{first: 2, second: 1000}, waiting: 1, want: first},
		{name: "queue of the first is full", busy: first, want: second},
		{name: "returns to the only one", refuse: map[string]int{first: 2}, waiting: 1, drained: second, want: first},
		{name: "queue of the only one is full", busy: first, drained: second, refused: admission.ReasonFull},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			var r *rig
			q, _ := newQueues(t, &r, admission.On, func(o *admission.Options) { o.MaxWaiting = tt.waiting })
			r, _ = startRoutes(t, []string{first, second}, map[string][]string{"chat": {"100:" + first, "0:" + second}},
				func(o *forward.Options) { o.Queue = q })
			for name, times := range tt.refuse {
				script(t, r.engineOf(name, r.P), fakevllm.Fault{Kind: fakevllm.FaultStatus, Status: http.StatusTooManyRequests, Times: times})
			}
			occupy := func(tokens int64) {
				if tt.busy != "" {
					r.sched.Usable(instance.Prefill, tt.busy, nil)[0].Load.Waiting.Add(tokens)
				}
			}
			occupy(1000)
			if tt.drained != "" {
				r.members.change(func(in *instance.Instance) {
					if in.Record.Models[0] == tt.drained {
						in.Record.State = instance.Draining
					}
				})
			}
			var client sync.WaitGroup
			client.Go(func() {
				a := r.post(chatPath, chatOf("chat", false), "X-PD-Trace", "1", "X-Request-Timeout", "30")
				if tt.refused != "" {
					if e := r.entry(); a.status != http.StatusTooManyRequests || e.Refused != tt.refused || a.header.Get("X-Pd-Model-Fallback") != "" {
						t.Errorf("%d %v %s, %+v", a.status, a.header, a.body, e)
					}
					return
				}
				if got := a.header.Get("X-Pd-Model"); a.status != http.StatusOK || got != tt.want || (a.header.Get("X-Pd-Model-Fallback") != "") != (got == second) {
					t.Errorf("%d %v %s", a.status, a.header, a.body)
				}
			})
			if tt.waits != "" {
				waitingFor(t, q, tt.waits, 1)
				occupy(-1000)
				q.Wake()
			}
			client.Wait()
		})
	}
}

// Each target of a model route with labels has a queue: one can have waiting requests while another is idle.
func TestQueue_Labels(t *testing.T) {
	t.Parallel()
	var r *rig
	q, _ := newQueues(t, &r, admission.On, nil)
	r, _ = startRoutes(t, []string{model, model}, map[string][]string{"stable": {"100:m{pair=0}", "0:m{pair=1}"}, "canary": {"100:m{pair=1}"}},
		func(o *forward.Options) { o.Queue = q })
	stable := r.sched.Usable(instance.Prefill, model, target(t, "100:m{pair=0}").Labels)
	require.Len(t, stable, 1)
	stable[0].Load.Waiting.Add(1000)
	var client sync.WaitGroup
	client.Go(func() {
		assert.Equal(t, "m{pair=0}", r.targetOf("stable", false, "session-id", "a"))
	})
	waitingFor(t, q, "m{pair=0}", 1)
	assert.Equal(t, "m{pair=1}", r.targetOf("canary", false))
	stable[0].Load.Waiting.Add(-1000)
	q.Wake()
	client.Wait()
}

// A request that the queues of several targets refuse counts once, and not at all if another target serves it.
func TestQueue_CountsRefusedOnce(t *testing.T) {
	t.Parallel()
	var r *rig
	q, seen := newQueues(t, &r, admission.On, func(o *admission.Options) { o.MaxWaiting = 0 })
	r, _ = startRoutes(t, []string{model, model}, map[string][]string{"chat": {"100:m{pair=0}", "0:m{pair=1}"}},
		func(o *forward.Options) { o.Queue = q })
	for n, want := range []int{http.StatusOK, http.StatusTooManyRequests} {
		r.sched.Usable(instance.Prefill, model, target(t, fmt.Sprintf("100:m{pair=%d}", n)).Labels)[0].Load.Waiting.Add(1000)
		if a := r.post(chatPath, chatOf("chat", false)); a.status != want || seen.of("default refused queue_full") != n {
			t.Errorf("%d %s, %v", a.status, a.body, seen.seen)
		}
		refused := int64(0)
		for _, s := range q.Status() {
			refused += s.Refused
		}
		if refused != int64(n) {
			t.Errorf("%+v", q.Status())
		}
	}
}

// A stream that continues a stored response takes no capacity of prefill.
func TestQueue_StoredResponse(t *testing.T) {
	t.Parallel()
	r, _, seen := startQueue(t, admission.On, nil)
	id := r.stored("")
	script(t, r.D[0], fakevllm.Fault{Kind: fakevllm.FaultHang, Tokens: 1, Times: 1})
	ctx, leave := context.WithCancel(t.Context())
	var client sync.WaitGroup
	client.Go(func() {
		r.postCtx(ctx, responsesPath, agentBody(responsesPath, true, `,"previous_response_id":"`+id+`"`))
	})
	defer client.Wait()
	defer leave()
	eventually(t, "the stream", func() bool { return r.D[0].Counters().Faults == 1 })
	a := r.post(queuedPath, queuedBody("x"), "X-Request-Timeout", "1")
	assert.True(t, a.status == http.StatusOK && seen.of("default waited") == 0, "%d %s: %v", a.status, a.body, seen.seen)
}

// A client leaves while its request waits, in the queue or to be sent again. Its key is charged for the
// tokens only if an engine has computed the prompt.
func TestQueue_KeyLimit(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		refusals int // after 6, it waits at least 2 s
		computed bool
	}{{0, false}, {6, false}, {6, true}} {
		refusals, table := tc.refusals, new(keylimit.Table)
		table.Set(map[string]instance.KeyLimits{"a": {V: 1, Input: 40}})
		r, q, _ := startQueueTuned(t, admission.On, nil, func(o *forward.Options) { o.Keys = table })
		if refusals > 0 {
			full := fakevllm.Fault{Kind: fakevllm.FaultStatus, Status: http.StatusTooManyRequests}
			if tc.computed { // decode refuses it first
				script(t, r.D[0], fakevllm.Fault{Kind: fakevllm.FaultStatus, Status: http.StatusTooManyRequests, Times: 1})
				full.Nth = 2
			}
			script(t, r.P[0], full)
		} else {
			occupy(r, 1000)
		}
		ctx, leave := context.WithCancel(t.Context())
		var client sync.WaitGroup
		client.Go(func() { r.postCtx(ctx, queuedPath, queuedBody("x"), "X-Key", "a") })
		if refusals > 0 {
			eventually(t, "the refusals", func() bool {
				return r.P[0].Counters().Faults >= int64(refusals) && prefillLoad(r).InFlight.Load() == 0
			})
		} else {
			waiting(t, q, 1)
		}
		leave()
		client.Wait()
		r.entry()
		r.P[0].ClearFaults()
		if refusals == 0 {
			occupy(r, -1000)
		}
		for i, want := range []int{http.StatusOK, http.StatusTooManyRequests} {
			if i == 0 && tc.computed {
				continue
			}
			a := r.post(queuedPath, queuedBody("x"), "X-Key", "a")
			assert.Equal(t, want, a.status, "%+v: %s", tc, a.body)
		}
	}
}

// A prompt that takes longer than its deadline is refused, unless the engine has it in its cache.
func TestQueueCache(t *testing.T) {
	t.Parallel()
	r, q, _ := startQueue(t, admission.On, func(o *admission.Options) {
		o.Rates = func(string, string) estimate.Rates {
			return estimate.Rates{Prefill: queuedLine(0.01), Transfer: queuedLine(0), Token: queuedLine(0), Output: 10, Uncached: 10}
		}
	})
	body := func(name string) string {
		return `{"model":"m","max_tokens":2,"prompt":"` + strings.Repeat(name+" ", 1500) + `"}`
	}
	r.post(queuedPath, body("first")).require(t, http.StatusOK)
	occupy(r, 500)
	r.sched.Loads.SetEngine(r.sched.Usable(instance.Prefill, model, nil)[0].Instance.Key, &policy.Engine{
		At: time.Now(), Ranks: []policy.Rank{{Running: 1}}, All: policy.Rank{Running: 1},
	})
	inFlight := prefillLoad(r).InFlight.Load()
	if a := r.post(queuedPath, body("other"), "X-Request-Timeout", "10"); a.status != http.StatusTooManyRequests || !strings.Contains(string(a.body), admission.ReasonWait) {
		t.Errorf("%d %s", a.status, a.body)
	}
	assert.Equal(t, inFlight, prefillLoad(r).InFlight.Load(), "requests in flight")
	var clients sync.WaitGroup
	clients.Go(func() {
		r.post(queuedPath, body("first"), "X-Request-Timeout", "10").check(t, http.StatusOK)
	})
	waiting(t, q, 1)
	occupy(r, -500)
	q.Wake()
	clients.Wait()
}

// Engines that schedule by priority get the priority of the class; others do not, since they would refuse it.
// A priority that the client may set is kept.
func TestQueueEnginePriority(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct{ mode, class, body, key, want string }{
		{"on", "interactive", "", "", `"priority":-1`},
		{"on", "default", "", "", ""},
		{"on", "batch", "", "", `"priority":1`},
		{"on", "batch", `"priority":7,`, "", `"priority":1`},
		{"on", "batch", `"priority":0,`, "admin", `"priority":0`},
		{"observe", "batch", "", "", ""},
	} {
		q := admission.New(admission.Options{
			Mode: admission.Mode(tc.mode), Observer: new(observer), Engines: func(string, instance.Selector) (prefill, decode []admission.Engine) { return nil, nil },
		})
		r := startTuned(t, fakevllm.NIXL, 1, 1, tuning{
			engine: func(o *fakevllm.Options) {
				if o.Role == fakevllm.RoleDecode {
					o.SchedulingPolicy = "fcfs"
				}
			},
			forward: func(o *forward.Options) {
				o.Queue = q
				o.Privileged = func(r *http.Request) bool { return r.Header.Get("X-Api-Key") == "admin" }
			},
		})
		r.members.changeAt(r.P[0], func(in *instance.Instance) { in.Record.Labels = map[string]string{"scheduling_policy": "priority"} })
		a := r.post(queuedPath, `{`+tc.body+queuedBody("x")[1:], "X-Priority", tc.class, "X-Api-Key", tc.key)
		assert.Equal(t, http.StatusOK, a.status, "%v: %s", tc, a.body)
		for role, engine := range map[string]*fakevllm.Server{"prefill": r.P[0], "decode": r.D[0]} {
			requests := engine.Requests()
			body := string(requests[slices.IndexFunc(requests, func(r fakevllm.Request) bool { return r.Path == queuedPath })].Body)
			_, is, found := strings.Cut(body, `"priority":`)
			want := role == "prefill" && tc.want != ""
			if role == "decode" && tc.key == "admin" { // 0 is no priority: no engine refuses it
				want = true
			}
			if found != want || found && !strings.HasPrefix(`"priority":`+is, tc.want) || strings.Contains(is, `"priority"`) {
				t.Errorf("%v: %s got %s", tc, role, body)
			}
		}
	}
}
