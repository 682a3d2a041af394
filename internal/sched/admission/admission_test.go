package admission_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/internal/sched/admission"
	"github.com/pdmesh/pdmesh/internal/sched/estimate"
	"github.com/pdmesh/pdmesh/internal/sched/policy"
	"github.com/pdmesh/pdmesh/sim/testkit"
	"github.com/pdmesh/pdmesh/sim/testkit/leak"
	"github.com/pdmesh/pdmesh/sim/testkit/members"
)

func TestMain(m *testing.M) { leak.Main(m) }

// rig has one prefill and one decode engine for each model, a clock that tests set, and a queue. A
// token takes a millisecond, so that 300 tokens may wait.
type rig struct {
	*admission.Queues
	t               testing.TB
	prefill, decode map[string]*policy.Load
	rates           estimate.Rates

	mu   sync.Mutex // guards the fields below
	now  time.Time
	seen []string // what the observer was told
	sent []string // names of requests in the order of their dispatch
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
		Engines: func(m string) (prefill, decode []admission.Engine) {
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

// one is a request in a goroutine of its own.
type one struct {
	admission.Request
	err    error
	done   chan struct{}
	cancel func()
}

// send sends a request, and returns when it waits or has its answer.
func (r *rig) send(name string, q admission.Request) *one {
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
	before := r.Waiting()
	go func() {
		defer close(o.done)
		if o.err = r.Admit(ctx, &o.Request); o.err == nil {
			r.mu.Lock()
			r.sent = append(r.sent, name)
			r.mu.Unlock()
		}
	}()
	testkit.Eventually(r.t, members.Soon, func() error {
		select {
		case <-o.done:
			return nil
		default:
		}
		if r.Waiting() <= before {
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

// end waits until a request has its answer.
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
	var r *admission.Refused
	if errors.As(err, &r) {
		return r.Reason
	}
	return fmt.Sprint(err)
}

// busy makes the prefill engine of a model busy, so that the next requests wait.
func (r *rig) busy(model string) { r.prefill[model].Waiting.Store(1000) }

// free lets exactly one request through.
func (r *rig) free(model string) {
	r.prefill[model].Waiting.Store(0)
	r.Wake()
}

// drain dispatches one request after another, and returns their names in this order.
func (r *rig) drain() string {
	for n := r.Waiting(); n > 0; n = r.Waiting() {
		r.DispatchOne()
		testkit.Eventually(r.t, members.Soon, func() error {
			r.mu.Lock()
			defer r.mu.Unlock()
			if r.Waiting() >= n {
				return errors.New("nothing was dispatched")
			}
			return nil
		})
	}
	var names []string
	testkit.Eventually(r.t, members.Soon, func() error {
		r.mu.Lock()
		defer r.mu.Unlock()
		names = r.sent
		return nil
	})
	return strings.Join(names, " ")
}

func TestFastPath(t *testing.T) {
	r := newRig(t, nil)
	var q admission.Request
	for range 100 {
		q = admission.Request{Model: "m", Class: admission.Default, Prompt: 100}
		if err := r.Admit(t.Context(), &q); err != nil {
			t.Fatal(err)
		}
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

// BenchmarkIdle is what the queue adds to a request while the fleet is idle.
func BenchmarkIdle(b *testing.B) {
	r := newRig(b, nil)
	var q admission.Request
	ctx := context.Background()
	b.ReportAllocs()
	for b.Loop() {
		q = admission.Request{Model: "m", Class: admission.Default, Prompt: 100}
		_ = r.Admit(ctx, &q)
		q.Picked(instance.Prefill)
		q.Picked(instance.Decode)
		q.Prefilled()
		q.Done(100, 100, 10)
	}
}
