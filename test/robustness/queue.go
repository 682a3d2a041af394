package robustness

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// The classes of requests in the order of dispatch, and the maximum wait of each.
var (
	queueClasses = []string{"interactive", "default", "batch"}
	queueBounds  = []time.Duration{30 * time.Second, 2 * time.Minute, 30 * time.Minute}
)

const (
	// leastShare is the share of the capacity that a lower class keeps, relative to the cost of the higher
	// classes. roughly is a tolerance for costs that the checker does not know.
	leastShare = 0.05 / 0.95
	roughly    = 1.5
	// digests is how long proxies may not know each other's queues: two load digests.
	digests = 2 * time.Second
	// promptly is the permitted delay of a dispatch or a refusal.
	promptly = time.Second
)

// wait is the wait of a request in the queue of its proxy, as far as its client could measure it.
type wait struct {
	*Request
	class    int
	from, to time.Time
	limit    time.Duration
	cost     float64 // as the queue counts it
}

// waits returns the waits that only the queue determined, without those during faults, in the order
// in which they ended.
func (h *History) waits() (out []wait) {
	output := 0.0
	for i := range h.Requests {
		output += float64(h.Requests[i].Output) / float64(len(h.Requests))
	}
	for i := range h.Requests {
		r := &h.Requests[i]
		w := wait{Request: r, class: slices.Index(queueClasses, r.Class), from: r.From, to: r.From.Add(r.Queued), cost: float64(r.Prompt) + 2*output}
		if r.Outcome == Refused {
			w.to = r.To
		}
		if w.class < 0 || r.Outcome != Refused && r.Queued == 0 || h.faulty(r.From.Add(-etcdRecovery), w.to, r.Proxy, "machine") != nil ||
			h.faulty(r.From.Add(-time.Second), w.to, r.Proxy+ClientLink) != nil {
			continue
		}
		if w.limit = queueBounds[w.class]; r.Timeout > 0 {
			w.limit = min(w.limit, r.Timeout)
		}
		out = append(out, w)
	}
	slices.SortStableFunc(out, func(a, b wait) int { return a.to.Compare(b.to) })
	return out
}

// overdue reports whether a request waited until its deadline. Such a request is dispatched or refused
// out of order.
func (w *wait) overdue() bool { return w.to.Sub(w.from) >= w.limit-promptly/4 }

// checkOrder: no request is dispatched before one of a higher class that has waited longer for the same
// model, except within the share that a lower class keeps. This holds in one proxy at once, and in the
// fleet once the proxies know each other's queues.
func checkOrder(h *History, v *Verdict) {
	waits := h.waits()
	type line struct {
		proxy, model string // proxy "" means all proxies
		class        int
	}
	inverted, higher, largest, last := map[line]float64{}, map[line]float64{}, map[line]float64{}, map[line]wait{}
	for _, low := range waits {
		if low.Outcome == Refused {
			continue
		}
		for _, proxy := range []string{low.Proxy, ""} {
			for c := low.class + 1; c < len(queueClasses); c++ {
				higher[line{proxy, low.Model, c}] += low.cost
			}
			l, late := line{proxy, low.Model, low.class}, digests
			if proxy != "" {
				late = promptly / 4
			}
			late += h.stalled(low.from, low.to.Add(late))
			if !low.overdue() && slices.ContainsFunc(waits, func(r wait) bool {
				return r.class < low.class && r.Model == low.Model && (proxy == "" || r.Proxy == proxy) && !r.overdue() &&
					r.from.Before(low.from) && r.from.Add(late).Before(low.to) && r.to.After(low.to.Add(late))
			}) {
				inverted[l] += low.cost
				largest[l] = max(largest[l], low.cost)
				last[l] = low
			}
		}
	}
	for l, cost := range inverted {
		if allowed := roughly*leastShare*higher[l] + 3*largest[l]; cost > allowed {
			w := last[l]
			v.add("order", w.to, []string{w.ID, l.proxy}, "%s requests of cost %.0f for %s were dispatched before higher classes that waited for longer (proxy %q), %.0f is allowed; one is %s",
				queueClasses[l.class], cost, l.model, l.proxy, allowed, w.ID)
		}
	}
}

// checkBounds: queues do not exceed their maximum length, no request waits beyond its deadline, and the
// reason of each refusal is correct.
func checkBounds(h *History, v *Verdict) {
	for _, q := range h.Queues {
		if q.Waiting > h.QueueLength {
			v.add("bounds", q.At, []string{q.Proxy}, "%d requests wait for %s in %s, at most %d may", q.Waiting, q.Model, q.Proxy, h.QueueLength)
		}
	}
	waits := h.waits()
	for _, w := range waits {
		waited, slack := w.to.Sub(w.from), promptly+h.stalled(w.from, w.to)
		bad := func(format string, args ...any) {
			args = append([]any{w.ID, w.Class, w.Proxy, waited.Round(time.Millisecond)}, args...)
			v.add("bounds", w.to, []string{w.ID}, "%s (%s) waited in %s for %s, "+format, args...)
		}
		switch {
		case waited > w.limit+slack:
			bad("its deadline was after %s", w.limit)
		case w.Outcome != Refused:
		case w.Reason == "deadline" && waited < w.limit-promptly:
			bad("and was refused for its deadline, which was after %s", w.limit)
		case w.Reason == "predicted_wait" && waited > slack:
			bad("and was refused because of a prediction that should be made at its arrival")
		case w.Reason == "stopping":
			bad("and was refused because the proxy stops, which it did not")
		case w.Reason == "queue_full":
			if i := slices.IndexFunc(waits, func(o wait) bool {
				return o.class > w.class && o.Proxy == w.Proxy && o.Model == w.Model && o.from.Add(slack).Before(w.to) && o.to.After(w.to.Add(slack))
			}); i >= 0 {
				bad("and was refused because the queue was full, while %s (%s) waited", waits[i].ID, waits[i].Class)
			}
		}
	}
}

// checkRelease: after the load no request waits, and each proxy admits a request at once.
func checkRelease(h *History, v *Verdict) {
	for _, f := range h.Final {
		if f.Queued != 0 {
			v.add("release", h.Start, []string{f.Proxy}, "%d requests wait in %s after the load", f.Queued, f.Proxy)
		}
		if f.Blocked != "" {
			v.add("release", h.Start, []string{f.Proxy}, "%s does not admit a request at once after the load: %s", f.Proxy, f.Blocked)
		}
	}
}

// queueSummary returns how long requests of each class waited, and how many were refused.
func (h *History) queueSummary() string {
	var b strings.Builder
	waits := h.waits()
	for c, name := range queueClasses {
		var waited []time.Duration
		refused := map[string]int{}
		for _, w := range waits {
			switch {
			case w.class != c:
			case w.Outcome == Refused:
				refused[w.Reason]++
			default:
				waited = append(waited, w.to.Sub(w.from))
			}
		}
		slices.Sort(waited)
		if n := len(waited); n > 0 {
			fmt.Fprintf(&b, "%s: %d admitted after %s (p50), %s (p90), refused %v; ", name, n,
				waited[n/2].Round(time.Millisecond), waited[n*9/10].Round(time.Millisecond), refused)
		}
	}
	return strings.TrimSuffix(b.String(), "; ")
}
