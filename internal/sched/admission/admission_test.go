package admission_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/internal/sched/admission"
	"github.com/pdmesh/pdmesh/internal/sched/estimate"
	"github.com/pdmesh/pdmesh/internal/sched/policy"
	"github.com/pdmesh/pdmesh/sim/testkit"
	"github.com/pdmesh/pdmesh/sim/testkit/leak"
	"github.com/pdmesh/pdmesh/sim/testkit/members"
)

func TestMain(m *testing.M) { leak.Main(m) }

// rig has one prefill and one decode engine for each model, a clock that tests
// set, and a queue. A token takes a millisecond, so 300 tokens may wait.
type rig struct {
	*admission.Queues
	t               testing.TB
	prefill, decode map[string]*policy.Load
	rates           estimate.Rates

	mu   sync.Mutex // guards the fields below
	now  time.Time
	seen []string // notifications of the observer
}

func (r *rig) Now() time.Time {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.now
}

func (r *rig) pass(d time.Duration) {
	r.mu.Lock()
	r.now = r.now.Add(d)
	r.mu.Unlock()
	r.Tick()
}

func (r *rig) note(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.seen = append(r.seen, fmt.Sprintf(format, args...))
}

func (r *rig) notified() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.seen)
}

func (r *rig) Waited(c admission.Class, d time.Duration)    { r.note("%s waited %s", c, d) }
func (r *rig) NotAdmitted(c admission.Class, reason string) { r.note("%s refused %s", c, reason) }
func (r *rig) Observed(c admission.Class, result string)    { r.note("%s would %s", c, result) }
func (r *rig) Predicted(float64)                            {}
func line(each float64) estimate.Line                       { return estimate.Line{Each: each, Samples: 99} }
func engine(name string, l *policy.Load) []admission.Engine {
	return []admission.Engine{{Address: name, Load: l}}
}
func (r *rig) full(l *policy.Load, running, waiting, kv float64) {
	l.Engine.Store(&policy.Engine{All: policy.Rank{Running: running, Waiting: waiting, Usage: kv}})
}

func newRig(t testing.TB, change func(*admission.Options, *rig)) *rig {
	t.Helper()
	r := &rig{t: t, now: time.Unix(1e9, 0), prefill: map[string]*policy.Load{}, decode: map[string]*policy.Load{}}
	r.rates = estimate.Rates{Prefill: line(0.001), Transfer: line(0), Token: line(0.001), Output: 10, Uncached: 100}
	for _, m := range []string{"m", "other"} {
		r.prefill[m], r.decode[m] = new(policy.Load), new(policy.Load)
	}
	o := admission.Options{
		Mode: admission.On, MaxWaiting: 1000, MaxBytes: 1 << 20, Observer: r, Now: r.Now, TPOT: 100 * time.Millisecond,
		Rates:  func(string, string) estimate.Rates { return r.rates },
		Tokens: func(_ string, bytes int) int { return bytes },
		Engines: func(m string, _ instance.Selector) (prefill, decode []admission.Engine) {
			if r.prefill[m] == nil {
				return nil, nil
			}
			return engine("p", r.prefill[m]), engine("d", r.decode[m])
		},
	}
	if change != nil {
		change(&o, r)
	}
	r.Queues = admission.New(o)
	return r
}

// one is a request that runs in a separate goroutine.
type one struct {
	admission.Request
	err    error
	done   chan struct{}
	cancel func()
}

// send sends a request, and returns when it waits or is answered.
func (r *rig) send(q admission.Request) *one {
	r.t.Helper()
	if q.Model == "" {
		q.Model = "m"
	}
	if q.Prompt == 0 {
		q.Prompt = 100
	}
	o := &one{Request: q, done: make(chan struct{})}
	var ctx context.Context
	ctx, o.cancel = context.WithCancel(context.Background())
	before, notified := r.Waiting(), r.notified()
	go func() {
		defer close(o.done)
		o.err = r.Admit(ctx, &o.Request)
		if refused, ok := errors.AsType[*admission.RefusedError](o.err); ok {
			refused.Count(o.Class)
		}
	}()
	testkit.Eventually(r.t, members.Soon, func() error {
		select {
		case <-o.done:
			return nil
		default:
		}
		if r.Waiting() <= before && r.notified() == notified { // it may replace another one
			return errors.New("it does not wait")
		}
		return nil
	})
	r.t.Cleanup(func() { o.cancel(); <-o.done })
	return o
}

func (o *one) waits(t *testing.T) {
	t.Helper()
	select {
	case <-o.done:
		t.Errorf("it does not wait: %v", o.err)
	default:
	}
}

// end waits for the answer to a request.
func (o *one) end(t *testing.T) error {
	t.Helper()
	select {
	case <-o.done:
	case <-time.After(members.Soon):
		t.Fatal("it still waits")
	}
	return o.err
}

func refused(err error) string {
	if r, ok := errors.AsType[*admission.RefusedError](err); ok {
		return r.Reason
	}
	return fmt.Sprint(err)
}

// busy makes the prefill engine of a model busy, so that the next requests wait.
func (r *rig) busy(model string) { r.prefill[model].Waiting.Store(1000) }

// models returns the names of the queues that Status lists.
func (r *rig) models() (names []string) {
	for _, q := range r.Status() {
		names = append(names, q.Model)
	}
	return names
}

// Status does not list the queue of a removed target forever: model routes may have other targets by now.
func TestStatus_FormerTarget(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	labels, err := instance.ParseSelector("version=a1")
	require.NoError(t, err)
	target := admission.Request{Labels: labels, Queue: "m{version=a1}"}
	for range 2 {
		for _, q := range []admission.Request{{}, target} {
			o := r.send(q)
			require.NoError(t, o.end(t))
			o.Done(0, 0, 0)
		}
		r.pass(time.Minute)
		assert.Equal(t, []string{"m", target.Queue}, r.models(), "after a minute")
		r.pass(time.Hour)
		assert.Equal(t, []string{"m"}, r.models(), "after an hour")
	}
}

// Status lists no queue of a model without engines, unless requests wait in it.
func TestStatus_ModelWithoutEngines(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	for _, model := range []string{"m", "other"} {
		r.busy(model)
		r.send(admission.Request{Model: model}).waits(t)
	}
	engines := r.prefill["other"]
	delete(r.prefill, "other")
	r.mu.Lock()
	r.now = r.now.Add(time.Second) // its plan is outdated
	r.mu.Unlock()
	assert.Equal(t, []string{"m", "other"}, r.models(), "a request waits")
	r.pass(time.Second) // the waiting request is dispatched: the proxy refuses it for lack of engines
	assert.Equal(t, []string{"m"}, r.models(), "no request waits")
	r.prefill["other"] = engines
	r.pass(time.Second)
	assert.Equal(t, []string{"m", "other"}, r.models(), "its engines are back")
}

// Of many keys with as many waiting requests, Status always lists the same.
func TestStatus_ManyKeys(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	r.busy("m")
	for i := range 80 {
		r.send(admission.Request{Key: fmt.Sprint(i)})
	}
	first := r.Status()[0].Keys
	for range 5 {
		assert.Equal(t, first, r.Status()[0].Keys)
	}
}

// A request does not wait in a queue that was dropped between its lookup and its wait: no event would end
// that wait.
func TestDroppedQueue(t *testing.T) {
	t.Parallel()
	var r *rig
	drop := sync.OnceFunc(func() { // the engines leave, and 1,024 other models come
		delete(r.prefill, "m")
		for i := range 1024 {
			r.prefill[fmt.Sprint(i)] = new(policy.Load)
			r.decode[fmt.Sprint(i)] = new(policy.Load)
		}
		for i := range 1024 {
			q := &admission.Request{Model: fmt.Sprint(i)}
			if assert.NoError(t, r.Admit(t.Context(), q)) {
				q.Release()
			}
		}
	})
	r = newRig(t, func(o *admission.Options, r *rig) {
		o.Tokens = func(model string, bytes int) int {
			if model == "m" {
				drop()
			}
			return bytes
		}
	})
	r.busy("m")
	o := r.send(admission.Request{})
	require.NoError(t, o.end(t))
	assert.False(t, o.Placed())
	assert.NotContains(t, r.models(), "m")
}

func TestFastPath(t *testing.T) {
	r := newRig(t, nil)
	var q admission.Request
	for range 100 {
		q = admission.Request{Model: "m", Class: admission.Default, Prompt: 100}
		require.NoError(t, r.Admit(t.Context(), &q))
		q.Picked(instance.Prefill)
		q.Picked(instance.Decode)
		q.Prefilled()
		q.Done(100, 100, 10)
		q.Done(100, 100, 10)
	}
	unknown := admission.Request{Model: "unknown"}
	if err := r.Admit(t.Context(), &unknown); err != nil || len(r.Status()) != 1 {
		t.Errorf("%v %+v", err, r.Status())
	}
	var off *admission.Queues
	if err := off.Admit(t.Context(), &q); err != nil || off.Mode() != admission.Off {
		t.Error(err)
	}
	if allocs := testing.AllocsPerRun(100, func() {
		q = admission.Request{Model: "m", Class: admission.Default, Prompt: 100}
		_ = r.Admit(context.Background(), &q)
		q.Done(100, 100, 10)
	}); allocs > 0 {
		t.Errorf("%v allocations", allocs)
	}
}

// The learned share of uncached prompt tokens stays between 0 and 1, whatever engines report.
func TestCacheMissShare_InRange(t *testing.T) {
	r := newRig(t, nil)
	for _, uncached := range []int{-2000, 2000} {
		for range 100 {
			q := admission.Request{Model: "m", Class: admission.Default, Prompt: 100}
			require.NoError(t, r.Admit(t.Context(), &q))
			q.Done(100, uncached, 10)
			miss := r.Miss("m")
			require.True(t, miss >= 0 && miss <= 1, "after %d uncached tokens of 100: %v", uncached, miss)
		}
	}
}

// Requests that need not wait share a plan for about a second, also while Run is running.
// A plan takes longer than everything else that the queue does for a request.
func TestRun_SharesPlan(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		plans := 0
		r := newRig(t, func(o *admission.Options, _ *rig) {
			engines := o.Engines
			o.Now, o.Engines = time.Now, func(m string, labels instance.Selector) (prefill, decode []admission.Engine) {
				plans++
				return engines(m, labels)
			}
		})
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			r.Run(ctx)
		}()
		for range 1000 {
			q := admission.Request{Model: "m", Class: admission.Default, Prompt: 100}
			require.NoError(t, r.Admit(ctx, &q))
			q.Done(100, 100, 10)
			time.Sleep(10 * time.Millisecond)
			synctest.Wait()
		}
		assert.True(t, plans >= 10 && plans <= 13, "%d plans in 10 s", plans)
		cancel()
		<-ended
	})
}

func of(c admission.Class) admission.Request { return admission.Request{Class: c, Bytes: 10} }

// The number and the bytes of waiting requests are bounded; the newest of the lowest class is evicted first.
func TestBounds(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*admission.Options, *rig){
		"number": func(o *admission.Options, _ *rig) { o.MaxWaiting = 3 },
		"bytes":  func(o *admission.Options, _ *rig) { o.MaxBytes = 39 },
	} {
		r := newRig(t, change)
		r.busy("m")
		first := r.send(of(admission.Default))
		batch := []*one{r.send(of(admission.Batch)), r.send(of(admission.Batch))}
		second := r.send(of(admission.Default))
		assert.Equal(t, admission.ReasonFull, refused(batch[1].end(t)), "%s: the newest of the lowest class", name)
		batch[0].waits(t)
		third := r.send(of(admission.Default))
		assert.Equal(t, admission.ReasonFull, refused(batch[0].end(t)), name)
		third.waits(t)
		assert.Equal(t, admission.ReasonFull, refused(r.send(of(admission.Default)).end(t)),
			"%s: no lower class is left", name)
		first.waits(t)
		second.waits(t)
	}
}

// A key that fills the queue does not block other keys: its
// newest request is evicted until the keys have equal shares.
func TestBounds_OfKeys(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*admission.Options, *rig){
		"number": func(o *admission.Options, _ *rig) { o.MaxWaiting = 4 },
		"bytes":  func(o *admission.Options, _ *rig) { o.MaxBytes = 49 },
	} {
		for _, class := range []admission.Class{admission.Default, admission.Batch} {
			r := newRig(t, change)
			r.busy("m")
			sent := map[string][]*one{}
			send := func(key string, class admission.Class) {
				q := of(class)
				q.Key = key
				sent[key] = append(sent[key], r.send(q))
			}
			for _, key := range []string{"heavy", "heavy", "heavy", "heavy", "light", "heavy", "light", "light"} {
				send(key, class)
			}
			want := map[string]int{"heavy": 2, "light": 2}
			check := func() {
				for key, list := range sent {
					for i, o := range list {
						if i < want[key] {
							o.waits(t)
						} else if got := refused(o.end(t)); got != admission.ReasonFull {
							t.Errorf("%s, %s: request %d of key %s: %s", name, class, i, key, got)
						}
					}
				}
			}
			check()
			if class == admission.Batch { // in the lowest class, the key with the most waiting requests loses one to a higher class
				send("chat", admission.Default)
				want["chat"], want["light"] = 1, 1
				check()
			}
		}
	}
}

// No waiting request is evicted for one that would not fit even then.
func TestBounds_RefusesOnlyIfUseful(t *testing.T) {
	t.Parallel()
	r := newRig(t, func(o *admission.Options, _ *rig) { o.MaxBytes = 39 })
	r.busy("m")
	batch := r.send(of(admission.Batch))
	large := of(admission.Interactive)
	large.Bytes = 40
	assert.Equal(t, admission.ReasonFull, refused(r.send(large).end(t)))
	batch.waits(t)
}

// If no engine reports token counts, the estimate counts, unless no engine has worked for the request.
func TestUnreportedPrompt(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	attained := func(end func(*admission.Request)) int64 {
		one := admission.Request{Model: "m", Key: fmt.Sprint(r.notified(), len(r.Entries(64))), Prompt: 200}
		require.NoError(t, r.Admit(t.Context(), &one))
		end(&one)
		for _, e := range r.Entries(64) {
			if e.Key == one.Key {
				return int64(e.Attained)
			}
		}
		return 0
	}
	assert.EqualValues(t, 200+2*10, attained(func(q *admission.Request) { q.Done(0, 0, 10) }))
	assert.EqualValues(t, 0, attained((*admission.Request).Release))
}

// At its deadline, a request is dispatched. It is refused if engines
// report that they are full and there are enough samples.
func TestDeadline(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name    string
		running float64
		samples int
		timeout time.Duration
		after   time.Duration
		want    string
	}{
		{"not full", 0, 99, 0, 2 * time.Minute, "<nil>"},
		{"no samples", 1, 49, 0, 2 * time.Minute, "<nil>"},
		{"full", 1, 99, 0, 2 * time.Minute, admission.ReasonDeadline},
		{"own deadline", 1, 99, 3 * time.Second, 3 * time.Second, admission.ReasonDeadline},
		{"own deadline, not full", 0, 99, 3 * time.Second, 3 * time.Second, "<nil>"},
	} {
		r := newRig(t, nil)
		r.rates.Prefill.Samples = tc.samples
		r.busy("m")
		q := of(admission.Default)
		q.Timeout = tc.timeout
		o := r.send(q)
		r.full(r.prefill["m"], tc.running, 0, 0)
		r.pass(tc.after - time.Millisecond)
		o.waits(t)
		r.pass(2 * time.Millisecond)
		assert.Equal(t, tc.want, refused(o.end(t)), tc.name)
	}
}

// cache is a Cache with this number of known tokens; unknown if negative.
type cache int

func (c cache) Cached() (tokens int, known bool) { return int(c), c >= 0 }

// If the prompt alone takes longer than the deadline, the answer would be useless.
// While engines are full, such a request is refused, even if no other request waits.
func TestPromptTooLongForItsDeadline(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name    string
		cache   admission.Cache
		running float64
		timeout time.Duration
		want    string
	}{
		{"no cache", nil, 1, 3 * time.Second, admission.ReasonWait},
		{"unknown cache", cache(-1), 1, 3 * time.Second, admission.ReasonWait},
		{"little cached", cache(100), 1, 3 * time.Second, admission.ReasonWait},
		{"most cached", cache(3500), 1, 3 * time.Second, "<nil>"},
		{"longer deadline", nil, 1, 5 * time.Second, "<nil>"},
		{"no deadline", nil, 1, 0, "<nil>"},
		{"not full", nil, 0, 3 * time.Second, "<nil>"},
	} {
		r := newRig(t, nil)
		r.busy("m")
		r.full(r.prefill["m"], tc.running, 0, 0)
		o := r.send(admission.Request{Class: admission.Default, Prompt: 4000, Bytes: 10, Timeout: tc.timeout, Cache: tc.cache})
		if tc.want == "<nil>" {
			o.waits(t)
			r.prefill["m"].Waiting.Store(0)
			r.Wake()
		}
		assert.Equal(t, tc.want, refused(o.end(t)), tc.name)
	}
}

// If several requests are overdue at the same time, one is dispatched.
// The others wait, and are refused if the client has set the deadline.
func TestDeadlinesOfMany(t *testing.T) {
	t.Parallel()
	for _, timeout := range []time.Duration{0, 3 * time.Second} {
		r := newRig(t, nil)
		r.busy("m")
		q, second := of(admission.Default), of(admission.Default)
		q.Timeout, second.Timeout = timeout, timeout
		first, other := r.send(q), r.send(second)
		r.full(r.prefill["m"], 0, 0, 0)
		r.pass(cmp.Or(timeout, 2*time.Minute) + time.Millisecond)
		assert.NoError(t, first.end(t))
		if timeout == 0 {
			other.waits(t)
		} else if got := refused(other.end(t)); got != admission.ReasonDeadline {
			t.Errorf("the second one is not refused: %s", got)
		}
	}
}

// The earliest of several keys' overdue requests is dispatched; a request
// that is refused at its deadline does not wait for earlier ones.
func TestDeadlinesOfKeys(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	r.busy("m")
	send := func(key string, timeout time.Duration) *one {
		q := of(admission.Default)
		q.Key, q.Timeout = key, timeout
		return r.send(q)
	}
	first := send("a", 0)
	r.pass(time.Second)
	second := send("b", 0)
	r.pass(time.Second)
	third := send("a", 0)
	r.pass(time.Minute)
	own := send("a", time.Minute+500*time.Millisecond) // its deadline is half a second after that of the third
	r.full(r.prefill["m"], 0, 0, 0)
	r.pass(time.Minute + time.Second)
	assert.NoError(t, first.end(t))
	assert.Equal(t, admission.ReasonDeadline, refused(own.end(t)), "the one with its own deadline is not refused")
	r.pass(time.Second)
	assert.NoError(t, second.end(t))
	third.waits(t)
}

// A full model does not delay another one; the load of a model's engines decides.
func TestSaturation(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	r.busy("m")
	waits := r.send(of(admission.Interactive))
	other := of(admission.Batch)
	other.Model = "other"
	assert.NoError(t, r.send(other).end(t))
	waits.waits(t)
	r.prefill["m"].Waiting.Store(0)
	r.Wake()
	assert.NoError(t, waits.end(t))
	for name, change := range map[string]func(p, d *policy.Load){
		"prefill":            func(p, _ *policy.Load) { p.Waiting.Store(300) },
		"an older proxy":     func(p, _ *policy.Load) { p.Others.Waiting.Store(300) },
		"KV cache":           func(_, d *policy.Load) { d.Capacity.Store(1000); d.Held.Store(850); d.InFlight.Store(1) },
		"KV cache, others":   func(_, d *policy.Load) { d.Capacity.Store(1000); d.Others.Held.Store(850); d.Others.InFlight.Store(1) },
		"time of each token": func(_, d *policy.Load) { d.InFlight.Store(100) },
		"most streams":       func(_, d *policy.Load) { d.InFlight.Store(20) },
	} {
		r := newRig(t, func(o *admission.Options, _ *rig) { o.TPOT = 20600 * time.Microsecond }) // 20.6 streams
		change(r.prefill["m"], r.decode["m"])
		r.send(of(admission.Interactive)).waits(t)
		if s := r.Status()[0]; s.Waiting["interactive"] != 1 || s.Keys[""] != 1 || s.Bytes != 10 || s.Mode != "on" || max(s.Saturation[instance.Prefill], s.Saturation[instance.Decode]) < 1 {
			t.Errorf("%s: %+v", name, s)
		}
	}
}

// The queues that other proxies publish determine the share.
func TestShare(t *testing.T) {
	t.Parallel()
	backlog := func(c admission.Class, key string, n float64) admission.Entry {
		return admission.Entry{Model: "m", Class: c, Key: key, Backlog: n}
	}
	for _, tc := range []struct {
		name   string
		others *admission.Others
		want   float64
	}{
		{"no key", nil, 1},
		{"idle", &admission.Others{Attained: []admission.Entry{{Model: "m", Key: "a", Attained: 1000}}}, 1},
		{"another model", &admission.Others{Queues: [][]admission.Entry{{{Model: "other", Key: "a", Backlog: 1000}}}}, 1},
		{"an equal key", &admission.Others{Queues: [][]admission.Entry{{backlog(admission.Default, "a", 1e6)}}}, 0.5},
		{"the same key", &admission.Others{Queues: [][]admission.Entry{{backlog(admission.Default, "", 3*120)}}}, 0.25},
		{"three keys", &admission.Others{Queues: [][]admission.Entry{{backlog(admission.Default, "a", 500), backlog(admission.Default, "b", 500)}, {backlog(admission.Default, "c", 500)}}}, 0.25},
		{"a lower class", &admission.Others{Queues: [][]admission.Entry{{backlog(admission.Batch, "a", 1e6)}}}, 0.95},
		{"a higher class", &admission.Others{Queues: [][]admission.Entry{{backlog(admission.Interactive, "a", 1e6)}}}, 0.05},
		{"old digests", &admission.Others{Blind: 2}, 1.0 / 3},
	} {
		r := newRig(t, nil)
		r.busy("m")
		r.send(of(admission.Default)).waits(t)
		r.SetOthers(tc.others)
		got := r.Status()[0].Share
		assert.LessOrEqual(t, math.Abs(got-tc.want), 0.01, "%s: %v, want %v", tc.name, got, tc.want)
	}
	// A proxy without a backlog has a share, too.
	r := newRig(t, nil)
	require.NoError(t, r.send(of(admission.Default)).end(t))
	r.SetOthers(&admission.Others{Queues: [][]admission.Entry{{backlog(admission.Default, "a", 1e6)}}})
	r.pass(time.Second)
	assert.Equal(t, 0.05, r.Status()[0].Share, "without a backlog")
	// The first waiting request gets the share of its backlog at once.
	r.prefill["m"].Waiting.Store(150)
	require.NoError(t, r.send(of(admission.Interactive)).end(t))
}

// A request is sent if at least half of it fits in the share of 550 tokens, or if nothing of this proxy waits.
func TestShare_PartOfRequest(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		waiting int64
		prompt  int
		waits   bool
	}{{480, 100, false}, {520, 100, true}, {0, 5000, false}, {300, 5000, true}} {
		r := newRig(t, nil)
		r.busy("m")
		q := of(admission.Default)
		q.Prompt = tc.prompt
		r.send(q).waits(t)
		r.SetOthers(&admission.Others{Queues: [][]admission.Entry{{{Model: "m", Class: admission.Default, Key: "a", Backlog: 1e6}}}})
		r.prefill["m"].Waiting.Store(tc.waiting)
		r.prefill["m"].Others.Waiting.Store(500)
		r.Wake()
		if waits := r.Status()[0].Waiting["default"] == 1; waits != tc.waits {
			t.Errorf("%+v: waits: %v", tc, waits)
		}
	}
}

// A proxy with a backlog for another model has no share of this model, so its load counts.
func TestShare_BacklogOfAnotherModel(t *testing.T) {
	t.Parallel()
	for model, waits := range map[string]bool{"other": true, "m": false} {
		r := newRig(t, nil)
		r.prefill["m"].Others.Waiting.Store(1000)
		r.SetOthers(&admission.Others{Queues: [][]admission.Entry{{{Model: model, Class: admission.Default, Key: "a", Backlog: 1000}}}})
		o := r.send(of(admission.Default))
		if waits {
			o.waits(t)
		} else if err := o.end(t); err != nil {
			t.Error(err)
		}
	}
}

// The tokens that wait in other proxies are computed from their backlog, which
// includes outputs. They are known even for models without a queue in this proxy.
func TestWaitingTokens_OtherProxies(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil) // cost of a request: 100 and twice 10
	assert.Len(t, r.Elsewhere(), 0, "without other proxies")
	r.SetOthers(&admission.Others{
		Queues: [][]admission.Entry{
			{{Model: "m", Class: admission.Batch, Key: "a", Backlog: 1200}, {Model: "other", Key: "a", Backlog: 120, Attained: 9}},
			{{Model: "m", Key: "b", Backlog: 360}, {Model: "m{tier=canary}", Key: "b", Backlog: 240}},
		},
		Attained: []admission.Entry{{Model: "m", Key: "a", Attained: 1000}},
	})
	got := r.Elsewhere()
	assert.True(t, len(got) == 2 && math.Abs(got["m"]-1500) <= 0.1 && math.Abs(got["other"]-100) <= 0.1, "%v", got)
}

// A key's service in other proxies counts from its first request here, and only once.
func TestFirstRequestOfKey(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	served := admission.Request{Model: "m", Class: admission.Default, Key: "a", Prompt: 100}
	require.NoError(t, r.Admit(t.Context(), &served))
	served.Done(500, 500, 0)
	r.SetOthers(&admission.Others{Attained: []admission.Entry{{Model: "m", Class: admission.Default, Key: "b", Attained: 400}}})
	r.busy("m")
	send := func(key string) *one {
		q := of(admission.Default)
		q.Key = key
		return r.send(q)
	}
	a := send("a")
	b := send("b")
	r.prefill["m"].Waiting.Store(0) // one of them fits
	r.Wake()
	assert.NoError(t, b.end(t))
	a.waits(t)
}

// A proxy that has used its share may use an engine that is idle for all proxies, but not for class batch.
func TestIdleEngine(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name   string
		class  admission.Class
		others float64 // tokens that other proxies have sent to the engine
		waits  bool
	}{
		{"idle", admission.Default, 0, false},
		{"nearly idle", admission.Interactive, 50, false},
		{"used by others", admission.Interactive, 500, true},
		{"batch", admission.Batch, 0, true},
	} {
		idle := new(policy.Load)
		r := newRig(t, func(o *admission.Options, r *rig) {
			o.Engines = func(string, instance.Selector) (prefill, decode []admission.Engine) {
				return append(engine("p", r.prefill["m"]), engine("idle", idle)...), engine("d", r.decode["m"])
			}
		})
		r.prefill["m"].Waiting.Store(5000)
		idle.Waiting.Store(5000)
		o := r.send(of(tc.class))
		r.SetOthers(&admission.Others{Queues: [][]admission.Entry{{{Model: "m", Class: tc.class, Key: "a", Backlog: 1e6}}}})
		o.waits(t)
		idle.Waiting.Store(0)
		idle.Others.Waiting.Store(tc.others)
		r.Wake()
		if tc.waits {
			o.waits(t)
		} else if err := o.end(t); err != nil {
			t.Errorf("%s: %v", tc.name, err)
		}
	}
}

// Requests that wait to be sent again release their streams, and count again once they are sent.
func TestAgain_LeavesItsStreams(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, func(o *admission.Options, r *rig) {
			o.Now, o.TPOT = time.Now, 10*time.Millisecond
			r.rates.Token = line(0.00125) // 8 streams
		})
		r.decode["m"].InFlight.Store(1) // an idle engine is not full
		var again sync.WaitGroup
		defer again.Wait()
		fits := func() bool {
			ctx, leave := context.WithTimeout(t.Context(), time.Millisecond)
			defer leave()
			q := &admission.Request{Model: "m", Class: admission.Default, Prompt: 1}
			if r.Admit(ctx, q) != nil {
				return false
			}
			q.Picked(instance.Prefill)
			again.Go(func() { _, _ = r.Again(t.Context(), q) })
			synctest.Wait()
			return true
		}
		for i := range 8 {
			require.True(t, fits(), "request %d does not fit", i)
		}
		time.Sleep(2 * time.Second)
		assert.False(t, fits(), "requests that are sent again do not count")
	})
}

// The published state is bounded and keeps the largest backlogs.
func TestEntries(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	served := admission.Request{Model: "m", Key: "served", Prompt: 200}
	require.NoError(t, r.Admit(t.Context(), &served))
	served.Done(200, 150, 20)
	r.busy("m")
	for n, key := range []string{"a", "b", "b"} {
		q := of(admission.Batch)
		q.Key, q.Prompt = key, 100+n
		r.send(q)
	}
	got := r.Entries(64)
	want := []admission.Entry{{Model: "m", Class: admission.Batch, Key: "b", Backlog: 101 + 102 + 40}, {Model: "m", Class: admission.Batch, Key: "a", Backlog: 120}, {Model: "m", Key: "served", Attained: 190}}
	for i := range want[:2] {
		want[i].Backlog = got[i].Backlog // depends on the learned share of uncached tokens
	}
	if !slices.Equal(got, want) || got[0].Backlog <= got[1].Backlog || !slices.Equal(r.Entries(1), want[:1]) {
		t.Errorf("%+v, want %+v", got, want)
	}
}

// An engine reports the same number of streams twice while requests wait there. It
// then gets no more streams than that, until a report without waiting requests or a
// restart. A time without a pick or a report does not change that.
func TestDecodeSlots(t *testing.T) {
	var passedOver atomic.Bool
	r := newRig(t, func(o *admission.Options, r *rig) {
		o.TPOT = 0
		o.Engines = func(string, instance.Selector) (prefill, decode []admission.Engine) {
			if passedOver.Load() {
				return engine("p", r.prefill["m"]), nil
			}
			return engine("p", r.prefill["m"]), engine("d", r.decode["m"])
		}
	})
	d := r.decode["m"]
	served := func() {
		t.Helper()
		o := r.send(admission.Request{})
		assert.NoError(t, o.end(t))
		o.Done(0, 0, 0)
	}
	report := func(running, waiting, deferred, fetched float64) {
		d.Engine.Store(&policy.Engine{All: policy.Rank{Running: running, Waiting: waiting, Deferred: deferred, Fetching: waiting - fetched, Fetched: fetched}})
		r.pass(2 * time.Second)
		served() // an idle queue makes its plan when a request arrives
	}
	d.InFlight.Store(7)
	report(16, 3, 0, 0)
	report(12, 4, 0, 0) // another number: the KV cache is full
	report(16, 4, 4, 0) // waiting for their KV caches
	report(16, 2, 0, 0) // a momentary queue
	report(16, 4, 4, 2)
	d.InFlight.Store(40)
	served()
	d.InFlight.Store(7)
	report(16, 5, 0, 0)
	report(15, 9, 9, 4) // the KV caches of 4 have arrived
	last := d.Engine.Swap(nil)
	r.pass(2 * time.Second)
	served()
	d.Engine.Store(last)
	d.InFlight.Store(16)
	for _, is := range []bool{true, true, false} {
		passedOver.Store(is)
		r.pass(2 * time.Second)
		if is {
			served()
		}
	}
	waits := r.send(admission.Request{})
	waits.waits(t)
	d.Engine.Store(&policy.Engine{All: policy.Rank{Running: 16}})
	r.pass(2 * time.Second)
	assert.NoError(t, waits.end(t))
	waits.Done(0, 0, 0)
	// It restarted without a report while the queue was idle, possibly with another --max-num-seqs.
	d.Engine.Store(nil)
	r.pass(2 * time.Second)
	d.InFlight.Store(0)
	served()
	d.InFlight.Store(40)
	d.Engine.Store(&policy.Engine{StartedAt: time.Unix(1, 0), All: policy.Rank{Running: 40}})
	r.pass(2 * time.Second)
	served()
}
