package robustness

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
)

// flooded returns a good history with 20 requests of each class in the queue of proxy-1: those of interactive
// wait for 4 s, and each next class until the one before it is done.
func flooded() *History {
	h := good()
	h.QueueLength = 20
	for c, class := range queueClasses {
		for i := range 20 {
			from := 60 + float64(i)/10
			queued := []float64{4, 8, 12}[c]
			h.Requests = append(h.Requests, Request{
				Span: span(from, from+queued+1), ID: fmt.Sprintf("%s-%d", class, i), Proxy: "proxy-1", Model: ModelA, Outcome: OK,
				Class: class, Queued: time.Duration(queued * float64(time.Second)), Timeout: 20 * time.Second, Prompt: 100, Output: 10,
			})
		}
	}
	h.Queues = []QueuePoll{{at(61), "proxy-1", ModelA, 20}}
	return h
}

// of changes the requests of a class.
func of(h *History, class string, change func(r *Request)) {
	for i := range h.Requests {
		if r := &h.Requests[i]; r.Class == class {
			change(r)
		}
	}
}

func TestCheck_Queue(t *testing.T) {
	t.Parallel()
	refused := func(class, reason string, after time.Duration) func(h *History) {
		return func(h *History) {
			of(h, class, func(r *Request) { r.Outcome, r.Reason, r.Queued, r.To = Refused, reason, 0, r.From.Add(after) })
		}
	}
	for name, tc := range map[string]struct {
		rule string // "" for a good history
		do   func(h *History)
	}{
		"in order":                   {"", func(*History) {}},
		"refused at the deadline":    {"", refused("batch", "deadline", 20*time.Second)},
		"refused by a prediction":    {"", refused("batch", "predicted_wait", 0)},
		"the newest is refused":      {"", refused("batch", "queue_full", 0)},
		"dispatched at the deadline": {"", func(h *History) { of(h, "batch", func(r *Request) { r.Timeout, r.Queued = time.Second, time.Second }) }},
		"one of its least share":     {"", func(h *History) { h.Requests[len(h.Requests)-1].Queued = time.Second }},
		"another model":              {"", func(h *History) { of(h, "batch", func(r *Request) { r.Queued, r.Model = time.Second, ModelB }) }},
		"its proxy was stopped": {"", func(h *History) {
			refused("default", "stopping", 0)(h)
			h.Faults = append(h.Faults, fault(span(60, 65), "term", "proxy-1"))
		}},
		"batch goes first":   {"order", func(h *History) { of(h, "batch", func(r *Request) { r.Queued = time.Second }) }},
		"default goes first": {"order", func(h *History) { of(h, "default", func(r *Request) { r.Queued = time.Second }) }},
		"batch goes first elsewhere": {"order", func(h *History) {
			of(h, "interactive", func(r *Request) { r.Queued = 8 * time.Second })
			of(h, "batch", func(r *Request) { r.Queued, r.Proxy = 3*time.Second, "proxy-3" })
		}},
		"a queue is too long": {"bounds", func(h *History) { h.Queues[0].Waiting = 21 }},
		"beyond the deadline": {"bounds", func(h *History) { of(h, "batch", func(r *Request) { r.Timeout = 9 * time.Second }) }},
		"beyond the class's bound": {"bounds", func(h *History) {
			of(h, "interactive", func(r *Request) { r.Timeout, r.Queued = 0, 32*time.Second })
			of(h, "default", func(r *Request) { r.Class = "" })
			of(h, "batch", func(r *Request) { r.Class = "" })
		}},
		"refused after the deadline":  {"bounds", refused("batch", "deadline", 22*time.Second)},
		"refused before the deadline": {"bounds", refused("batch", "deadline", 5*time.Second)},
		"a late prediction":           {"bounds", refused("batch", "predicted_wait", 5*time.Second)},
		"a higher class is refused":   {"bounds", refused("default", "queue_full", 2*time.Second)},
		"a running proxy stops":       {"bounds", refused("default", "stopping", 0)},
		"a request still waits":       {"release", func(h *History) { h.Final[0].Queued = 1 }},
		"a slot is not released":      {"release", func(h *History) { h.Final[0].Blocked = "it waited for 10 s" }},
	} {
		h := flooded()
		tc.do(h)
		v := Check(h)
		if (tc.rule != "") != slices.ContainsFunc(v.Violations, func(v Violation) bool { return v.Rule == tc.rule }) {
			t.Errorf("%s: violations %v, want one of rule %q", name, v.Violations, tc.rule)
		}
		for _, one := range v.Violations {
			assert.Equal(t, tc.rule, one.Rule, "%s: also violates %s", name, one)
		}
	}
}

func TestQueuedHeader(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]time.Duration{
		"queue;dur=12.50, prefill;dur=3.00": 12500 * time.Microsecond, "queue;dur=7.00": 7 * time.Millisecond, "": 0, "prefill;dur=3.00": 0,
	} {
		var q Request
		q.header(map[string][]string{"X-Pd-Timing": {text}})
		assert.Equal(t, want, q.Queued, "%q", text)
	}
}
