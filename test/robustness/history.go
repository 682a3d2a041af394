package robustness

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"
)

// Span is a time interval. A zero To means that it has not ended.
type Span struct{ From, To time.Time }

// Overlaps reports whether a span has an instant in common with [from, to].
func (s Span) Overlaps(from, to time.Time) bool {
	return !s.From.After(to) && (s.To.IsZero() || !s.To.Before(from))
}

// Outcome is how a request ended, as its client saw it.
type Outcome string

// The outcomes.
const (
	OK        Outcome = "ok"
	Wrong     Outcome = "wrong"     // an answer that looks complete but differs from the expected one
	Broken    Outcome = "broken"    // visibly cut after its first content
	Failed    Outcome = "failed"    // an error answer, or an error event before any content
	Transport Outcome = "transport" // no answer: the connection to the proxy was refused or lost
	TimedOut  Outcome = "timed out" // the client's own limit passed
	Aborted   Outcome = "aborted"   // the client left on purpose
	Refused   Outcome = "refused"   // by the queue of the proxy
)

// Request is one request as its client saw it.
type Request struct {
	Span
	ID      string // X-Request-Id
	Proxy   string
	Route   string
	Model   string
	Stream  bool
	Outcome Outcome
	Err     string
	// Values of the trace headers; empty or 0 without them.
	Prefill, Decode, Alone string
	Revision               int64
	Attempts               int // -1 if no leg began
	// Only in runs with a queue. Queued is the time from the request's arrival until its first leg began;
	// 0 if unknown. Reason is the reason of a refusal. Prompt and Output are numbers of tokens.
	Class           string
	Timeout, Queued time.Duration
	Reason          string
	Prompt, Output  int
}

// Fault is an injected fault. Target is the name of a process; "etcd" and "machine" mean all members
// and all processes. NAME-agent is the agent of an engine.
type Fault struct {
	Span
	Kind, Target string
	Of           string // for restart-behind: the address of the decode engine that was stopped
}

// Op is a change by an operator.
type Op struct {
	Span
	Via      string // pdctl, or the proxy whose admin route was used
	Verb     string // drain, undrain, ...; deregister is SIGTERM for the agent
	Instance string // role/address; an op on role both changes two instances
	Wait     bool   // drain --wait
	Code     int    // exit code, or HTTP status / 100 - 2
	Revision int64  // of the change; 0 if the answer has none
	Output   string
}

// Arrival is a request at an engine, from the engine's journal. A zero To means that the engine died first.
type Arrival struct {
	Span
	Engine string // address that proxies use for it
	ID     string
}

// Change is an event of the suite's own watch on etcd, which ends when etcd is wiped.
type Change struct {
	At       time.Time
	Revision int64
	Key      string
	Deleted  bool
	Value    string
}

// Usage has the resources that a proxy uses.
type Usage struct {
	Goroutines, Descriptors int
	Heap                    int64 // bytes
}

// Final is the state of a proxy after the faults and the load have ended.
type Final struct {
	Proxy string
	// Lag is the time from the end of the last fault until the snapshot equalled etcd, and Used until
	// no instance was ejected. Differs describes the difference if the snapshot never equalled etcd.
	Lag, Used time.Duration
	Differs   string
	InFlight  map[string]int64 // by instance; 0 is left out
	Restarts  int              // starts during the run; Before is from the last start
	Before    Usage
	After     Usage
	Queued    int    // requests that wait in its queues
	Blocked   string // reason why it does not admit a request of the lowest class at once
}

// Engine is an engine of the run, with its state after the load has ended.
type Engine struct {
	Name, Role       string
	Address          string // address that proxies use for it
	Running, Waiting int64
	Complaints       []string // requests that a correct proxy never sends, and answers from wrong KV blocks
}

// History is everything that a run records.
type History struct {
	Seed     uint64
	Start    time.Time
	Requests []Request
	Faults   []Fault
	Ops      []Op
	Arrivals []Arrival
	Changes  []Change
	Stalls   []Span // times in which the suite itself got no CPU
	Final    []Final
	Engines  []Engine
	// Models has the models that each engine serves over time, by engine name.
	Models  map[string][]Serves
	Polls   []Poll
	Wipes   []time.Time     // times at which a new, empty etcd replaced the old one
	Crashes []string        // processes that ended by themselves
	Audit   time.Duration   // --audit-interval of the proxies
	Garbage map[string]bool // keys that were overwritten with invalid values
	// QueueLength is --queue-length of the proxies, 0 without --queue on; Queues are their queues.
	QueueLength int
	Queues      []QueuePoll
	// Continue reports whether the proxies run with --continue-streams.
	Continue bool
}

// QueuePoll is the number of requests that wait for a model in a proxy at one time.
type QueuePoll struct {
	At           time.Time
	Proxy, Model string
	Waiting      int
}

// Poll is the membership that a proxy reported at one time.
type Poll struct {
	At        time.Time
	Proxy     string
	Revision  int64
	Instances []Seen
}

// Seen is an instance in a Poll.
type Seen struct {
	Key      string // role/address
	View     string
	Intent   string
	Revision int64 // of its key
	Pending  bool
}

// Serves is a list of models from a time on.
type Serves struct {
	From   time.Time
	Models []string
}

// Violation is one violation of a rule.
type Violation struct {
	Rule string
	At   time.Time
	Text string
	Who  []string // instances, proxies and request ids that the excerpt should show
}

func (v Violation) String() string { return v.Rule + ": " + v.Text }

// stalled returns the time of stalls in [from, to].
func (h *History) stalled(from, to time.Time) time.Duration {
	var sum time.Duration
	for _, s := range h.Stalls {
		a, b := s.From, s.To
		if a.Before(from) {
			a = from
		}
		if b.After(to) {
			b = to
		}
		sum += max(b.Sub(a), 0)
	}
	return sum
}

// faulty returns the first fault of one of the targets in [from, to].
func (h *History) faulty(from, to time.Time, targets ...string) *Fault {
	for i := range h.Faults {
		f := &h.Faults[i]
		if slices.Contains(targets, f.Target) && f.Overlaps(from, to) {
			return f
		}
	}
	return nil
}

// away reports whether a proxy was killed, stopped or ended in [from, to], or did not serve again yet. A
// lost connection to etcd does not count, since it must not affect clients.
func (h *History) away(from, to time.Time, proxy string) bool {
	return slices.ContainsFunc(h.Faults, func(f Fault) bool {
		return f.Target == proxy && f.Overlaps(from, to) && slices.Contains([]string{"kill", "kill-forget", "stop", "term"}, f.Kind)
	})
}

// Excerpt returns the part of the history around a violation, one line for each event.
func (h *History) Excerpt(v Violation, around time.Duration, limit int) string {
	type line struct {
		at   time.Time
		text string
	}
	var lines []line
	from, to := v.At.Add(-around), v.At.Add(around)
	add := func(at time.Time, format string, args ...any) {
		if !at.Before(from) && !at.After(to) {
			lines = append(lines, line{at, fmt.Sprintf(format, args...)})
		}
	}
	for _, f := range h.Faults {
		add(f.From, "fault   %s of %s begins", f.Kind, f.Target)
		add(f.To, "fault   %s of %s ends", f.Kind, f.Target)
	}
	for _, o := range h.Ops {
		add(o.From, "op      %s %s via %s begins", o.Verb, o.Instance, o.Via)
		add(o.To, "op      %s %s via %s: code %d, revision %d: %.200s", o.Verb, o.Instance, o.Via, o.Code, o.Revision, o.Output)
	}
	for _, s := range h.Stalls {
		add(s.From, "stall   of %s", s.To.Sub(s.From).Round(time.Millisecond))
	}
	for _, c := range h.Changes {
		what := "put " + c.Value
		if c.Deleted {
			what = "deleted"
		}
		add(c.At, "etcd    %d %s %.200s", c.Revision, c.Key, what)
	}
	names := func(texts ...string) bool {
		return slices.ContainsFunc(v.Who, func(w string) bool {
			return slices.ContainsFunc(texts, func(t string) bool { return w != "" && strings.Contains(t, w) })
		})
	}
	for _, r := range h.Requests {
		if r.Outcome == Failed || r.Outcome == Transport || names(r.ID) {
			add(r.To, "request %s to %s (%s, %s) since %s: %s %s; prefill %s, decode %s, revision %d, attempts %d, queued for %s",
				r.ID, r.Proxy, r.Route, r.Model, h.clock(r.From), r.Outcome, r.Err, r.Prefill, r.Decode, r.Revision, r.Attempts, r.Queued)
		}
	}
	for _, a := range h.Arrivals {
		if names(a.ID) {
			add(a.From, "arrival of %s at %s", a.ID, a.Engine)
			add(a.To, "end     of %s at %s", a.ID, a.Engine)
		}
	}
	slices.SortStableFunc(lines, func(a, b line) int { return a.at.Compare(b.at) })
	if len(lines) > limit { // keep the lines closest to the violation
		slices.SortStableFunc(lines, func(a, b line) int {
			return cmp.Compare(a.at.Sub(v.At).Abs(), b.at.Sub(v.At).Abs())
		})
		lines = lines[:limit]
		slices.SortStableFunc(lines, func(a, b line) int { return a.at.Compare(b.at) })
	}
	var b strings.Builder
	for _, l := range lines {
		fmt.Fprintf(&b, "    %s %s\n", h.clock(l.at), l.text)
	}
	return b.String()
}

// clock returns a time as seconds since the start.
func (h *History) clock(at time.Time) string {
	if at.IsZero() {
		return "never"
	}
	return fmt.Sprintf("%8.3f", at.Sub(h.Start).Seconds())
}
