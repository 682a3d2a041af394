package robustness

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

const (
	// settled is how long an instance must be without faults and changes to count as able.
	settled = 5 * time.Second
	// hangs is how long a request may wait while an instance is able.
	hangs = 30 * time.Second
	// follows is how long a proxy may take to apply a change while it follows etcd.
	follows = 2 * time.Second
	// leaves is how long an engine may take to notice that a request has ended.
	leaves = time.Second
	// etcdRecovery is how long after a fault of etcd a proxy may use an older membership.
	etcdRecovery = 15 * time.Second
	// The proxies' --retry-budget: retries per request of budgetWindow, and retries on top.
	budgetRatio  = 0.2
	budgetBurst  = 64
	budgetWindow = 10 * time.Second
	// unknownRetries is the maximum number of retries of a request whose answer did not arrive.
	unknownRetries = 3
	// budgetExcuse is a key of Verdict.Excused.
	budgetExcuse = "the retry budget was used up"
)

// Verdict is the result of Check.
type Verdict struct {
	Violations []Violation
	Excused    map[string]int // number of failures that a documented exception covers, by exception
}

// Check applies every rule to a history.
func Check(h *History) Verdict {
	v := Verdict{Excused: map[string]int{}}
	for _, rule := range []func(*History, *Verdict){
		checkAnswers, checkLost, checkBroken, checkPicks, checkArrivals, checkDrainWait, checkAcknowledged, checkPolls, checkEnd, checkOrder, checkBounds, checkRelease,
	} {
		rule(h, &v)
	}
	slices.SortStableFunc(v.Violations, func(a, b Violation) int { return a.At.Compare(b.At) })
	return v
}

func (v *Verdict) add(rule string, at time.Time, who []string, format string, args ...any) {
	v.Violations = append(v.Violations, Violation{rule, at, fmt.Sprintf(format, args...), who})
}

// checkAnswers: no answer looks complete but differs from the expected one.
func checkAnswers(h *History, v *Verdict) {
	for _, r := range h.Requests {
		if r.Outcome == Wrong {
			if h.restartedUnknown(r) {
				v.Excused["decode read from a prefill engine that had restarted with the same engine id, before proxies knew"]++
				continue
			}
			v.add("answers", r.To, []string{r.ID}, "%s of %s (%s) through %s, decode %s: %s", r.Route, r.ID, r.Model, r.Proxy, r.Decode, r.Err)
		}
	}
}

// restartedUnknown reports whether the prefill engine of a request restarted with the same engine id, and
// the request ended before all proxies knew. No proxy can prevent that. Requests that end later must not
// use transfer params from before the restart, nor may requests of the decode engine that was stopped.
func (h *History) restartedUnknown(r Request) bool {
	for _, e := range h.Engines {
		if e.Address != r.Prefill {
			continue
		}
		return slices.ContainsFunc(h.Faults, func(f Fault) bool {
			return f.Kind == "restart-behind" && f.Target == e.Name && f.Of != r.Decode && f.Overlaps(r.To, r.To)
		})
	}
	return false
}

// checkLost: a request whose answer was not committed fails only if no decode instance could serve
// it, and a connection to a proxy is lost only if the proxy had a fault.
func checkLost(h *History, v *Verdict) {
	for _, r := range h.Requests {
		switch r.Outcome {
		case Transport:
			// A client may use a connection that was just reset.
			if h.away(r.From, r.To, r.Proxy) || h.faulty(r.From.Add(-time.Second), r.To, r.Proxy+ClientLink) != nil {
				v.Excused["the proxy of the request had a fault"]++
				continue
			}
			v.add("lost", r.To, []string{r.ID}, "no answer to %s from %s, which had no fault: %s", r.ID, r.Proxy, r.Err)
		case Failed, TimedOut:
			if strings.Contains(r.Err, "too many requests are being retried") {
				if made, allowed := h.retries(r.To, r.Proxy); float64(made) < allowed {
					v.add("budget", r.To, []string{r.ID}, "%s was refused a retry by %s, which had made at most %d, and may make %.0f", r.ID, r.Proxy, made, allowed)
				}
				v.Excused[budgetExcuse]++
				continue
			}
			if (strings.Contains(r.Err, "has not read the list of instances") || strings.Contains(r.Err, "this proxy is stopping")) && h.away(r.From, r.To, r.Proxy) {
				v.Excused["the proxy of the request had a fault"]++ // /readyz fails while it starts or stops
				continue
			}
			if strings.Contains(r.Err, "status 429") && slices.ContainsFunc(h.Faults, func(f Fault) bool { return f.Kind == "429" && f.Overlaps(r.From, r.To) }) {
				v.Excused["an engine refused the request with 429, and no other could take it"]++
				continue
			}
			if h.wiped(r.From.Add(-etcdRecovery), r.To) && h.forgot(r) { // the proxy knows only instances that have registered again
				v.Excused["the proxy began without a membership beside an etcd that was wiped"]++
				continue
			}
			if able := h.able(r); able != "" {
				v.add("lost", r.To, []string{r.ID, able}, "%s of %s (%s) through %s %s although %s could serve it: %s",
					r.Route, r.ID, r.Model, r.Proxy, r.Outcome, able, r.Err)
				continue
			}
			v.Excused["no decode instance could serve the request"]++
		}
	}
}

// retries returns the maximum number of retries that a proxy can have made in the budget's window
// before at, and the number that the budget allows.
func (h *History) retries(at time.Time, proxy string) (made int, allowed float64) {
	from := at.Add(-budgetWindow)
	allowed = budgetBurst
	reached := map[string]map[string]bool{} // attempts that reached an engine, including continued streams
	for _, a := range h.Arrivals {
		if i := strings.LastIndexByte(a.ID, '-'); i > 0 {
			if reached[a.ID[:i]] == nil {
				reached[a.ID[:i]] = map[string]bool{}
			}
			reached[a.ID[:i]][a.ID] = true
		}
	}
	for _, r := range h.Requests {
		if r.Proxy != proxy || r.To.Before(from) || r.From.After(at) {
			continue
		}
		switch attempts := max(r.Attempts, len(reached[r.ID]), 0); {
		case r.Attempts == 0:
			made += unknownRetries
		case r.Outcome == Failed || r.Outcome == TimedOut: // the last retry may have found no instance
			made += attempts
		default:
			made += attempts - 1
		}
		if r.From.After(from.Add(time.Second)) { // the proxy counts in whole seconds
			allowed += budgetRatio
		}
	}
	return made, allowed
}

// checkBroken: a committed answer breaks only if its decode instance or its proxy had a fault. With
// --continue-streams, a fault of decode is no excuse for a movable stream that another instance can serve.
func checkBroken(h *History, v *Verdict) {
	for _, r := range h.Requests {
		if r.Outcome != Broken {
			continue
		}
		var decode []string
		for _, e := range h.Engines {
			if e.Address == r.Decode {
				decode = append(decode, e.Name)
			}
		}
		ofProxy := h.away(r.From, r.To, r.Proxy) || h.faulty(r.From, r.To, r.Proxy+ClientLink) != nil
		if !ofProxy && h.movable(r) {
			if able := h.able(r); able != "" {
				v.add("broken", r.To, []string{r.ID, able}, "%s of %s (%s) through %s broke although %s could continue it: %s", r.Route, r.ID, r.Model, r.Proxy, able, r.Err)
				continue
			}
		}
		if ofProxy || h.faulty(r.From, r.To, decode...) != nil {
			v.Excused["a stream broke with its decode instance or its proxy"]++
			continue
		}
		v.add("broken", r.To, []string{r.ID, r.Decode}, "%s of %s through %s broke, and neither the proxy nor %s had a fault: %s", r.Route, r.ID, r.Proxy, r.Decode, r.Err)
	}
}

// movable reports whether the proxy must continue a stream on another instance: a completion, unless the
// retry budget is used up. The engines' vLLM version cannot continue chats.
func (h *History) movable(r Request) bool {
	if !h.Continue || !r.Stream || r.Route != "/v1/completions" {
		return false
	}
	made, allowed := h.retries(r.To, r.Proxy)
	return float64(made) < allowed
}

// forgot reports whether the proxy of a request has just lost the membership that it had saved.
func (h *History) forgot(r Request) bool {
	return slices.ContainsFunc(h.Faults, func(f Fault) bool {
		return f.Kind == "kill-forget" && f.Target == r.Proxy && f.Overlaps(r.From.Add(-settled), r.To)
	})
}

// registered reports whether etcd had the record of an instance during a whole interval.
func (h *History) registered(key string, from, to time.Time) bool {
	there := false
	for _, c := range h.Changes {
		switch {
		case c.Key != "/pd/"+key || c.At.After(to):
		case c.Deleted && !c.At.Before(from):
			return false
		default:
			there = !c.Deleted && (there || c.At.Before(from))
		}
	}
	return there
}

// able returns the address of a decode instance that could serve a request from settled before its start
// until its end; "" if there is none. The spare does not count. A proxy without a saved membership knows
// only the instances in etcd.
func (h *History) able(r Request) string {
	from := r.From.Add(-settled)
	if r.To.Sub(r.From) > hangs { // no request may wait longer while an instance is able
		from = r.To.Add(-hangs)
	}
	for _, e := range h.Engines {
		if e.Role == "prefill" || e.Name == "spare" || h.faulty(from, r.To, e.Name, e.Name+"-agent") != nil ||
			!h.serves(e.Name, r.Model, from, r.To) || h.forgot(r) && !h.registered("decode/"+e.Address, from, r.To) {
			continue
		}
		if !slices.ContainsFunc(h.out("decode", e.Address), func(s Span) bool { return s.Overlaps(from, r.To) }) {
			return e.Address
		}
	}
	return ""
}

// serves reports whether an engine serves a model during a whole interval.
func (h *History) serves(name, model string, from, to time.Time) bool {
	served := false
	for _, s := range h.Models[name] {
		switch {
		case s.From.After(to):
		case s.From.After(from):
			served = served && slices.Contains(s.Models, model)
		default:
			served = slices.Contains(s.Models, model)
		}
	}
	return served
}

// undoing maps each verb that stops new requests to an instance to the verb that undoes it.
var undoing = map[string]string{
	"drain": "undrain", "cordon": "uncordon", "weight-0": "weight-default", "remove": "allow", "deregister": "register",
}

// concerns reports whether an op changes an instance.
func (o *Op) concerns(role, address string) bool {
	r, a, _ := strings.Cut(o.Instance, "/")
	return a == address && (r == role || r == "both")
}

// out returns the spans in which operators may have excluded an instance. A span begins with the start of
// a change, successful or not, and ends when the change is undone successfully. After a fault of etcd, an
// agent needs time to register again.
func (h *History) out(role, address string) []Span {
	var out []Span
	for verb, undo := range undoing {
		open := false
		for _, o := range h.Ops {
			switch {
			case !o.concerns(role, address):
			case o.Verb == verb && !open:
				out, open = append(out, Span{From: o.From}), true
			case o.Verb == undo && open && o.Code == 0:
				out[len(out)-1].To, open = o.To, false
				if f := h.faulty(o.To, o.To.Add(settled), "etcd"); f != nil && (verb == "remove" || verb == "deregister") {
					out[len(out)-1].To = f.To.Add(settled)
				}
			}
		}
	}
	return out
}

// exile is a span in which an instance must get no new requests. It begins when a change succeeds,
// and ends when the next attempt to undo the change starts.
type exile struct {
	Span
	op        *Op
	revision  int64 // of the change; 0 if not known
	undone    int64 // revision at which the change was undone; 0 if not known
	key, name string
}

// exiles returns the exiles of all instances.
func (h *History) exiles() []exile {
	var out []exile
	for _, e := range h.Engines {
		for _, role := range roles(e.Role) {
			for _, verb := range slices.Sorted(maps.Keys(undoing)) {
				out = append(out, h.exilesBy(verb, e, role)...)
			}
		}
	}
	return out
}

func (h *History) exilesBy(verb string, e Engine, role string) (out []exile) {
	open := false
	for i := range h.Ops {
		o := &h.Ops[i]
		switch {
		case !o.concerns(role, e.Address):
		case o.Verb == verb && o.Code == 0 && !open:
			open = true
			out = append(out, exile{Span: Span{From: o.To}, op: o, revision: h.revisionOf(o, role, e.Address), key: role + "/" + e.Address, name: e.Name})
		case o.Verb == undoing[verb] && open:
			open = false
			x := &out[len(out)-1]
			if x.To = o.From; o.Code == 0 {
				x.undone = o.Revision
			}
		}
	}
	return out
}

func roles(role string) []string {
	if role == "both" {
		return []string{"prefill", "decode"}
	}
	return []string{role}
}

// revisionOf returns the revision of a change; for the deregistration of an agent, the revision at
// which its key was deleted.
func (h *History) revisionOf(o *Op, role, address string) int64 {
	if o.Verb != "deregister" {
		return o.Revision
	}
	for _, c := range h.Changes {
		if c.Deleted && strings.HasSuffix(c.Key, "/"+role+"/"+address) && !c.At.Before(o.From) && !c.At.After(o.To.Add(follows)) {
			return c.Revision
		}
	}
	return 0
}

// wiped reports whether etcd was wiped in [from, to].
func (h *History) wiped(from, to time.Time) bool {
	return slices.ContainsFunc(h.Wipes, func(at time.Time) bool { return !at.Before(from) && !at.After(to) })
}

// checkPicks: no proxy picks a decode instance from a snapshot with the change that excluded the
// instance. This rule has no time limit.
func checkPicks(h *History, v *Verdict) {
	exiles := h.exiles()
	for _, r := range h.Requests {
		if r.Decode == "" || r.Revision == 0 {
			continue
		}
		for _, x := range exiles {
			switch {
			case x.key != "decode/"+r.Decode, x.revision == 0, r.Revision < x.revision, r.From.Before(x.op.From):
			case h.wiped(h.Start, r.To): // revisions of two stores cannot be compared
			case !x.To.IsZero() && r.To.After(x.To) && (x.undone == 0 || r.Revision >= x.undone):
			case x.op.Verb == "deregister" && h.faulty(x.op.From.Add(-etcdRecovery), x.op.To.Add(follows), etcdAnd(r.Proxy)...) != nil:
				v.Excused["a proxy that missed the drain of an agent used the engine as an orphan"]++
			default:
				v.add("picks", r.From, []string{r.ID, r.Decode}, "%s picked %s for %s from revision %d, although %s at revision %d took it out",
					r.Proxy, r.Decode, r.ID, r.Revision, x.op.Verb, x.revision)
			}
		}
	}
}

// checkArrivals: an excluded instance gets no new request after the time that a proxy needs to
// follow etcd. Proxies that could not follow etcd are excused, since checkPicks covers them.
func checkArrivals(h *History, v *Verdict) {
	requests := map[string]*Request{}
	for i := range h.Requests {
		requests[h.Requests[i].ID] = &h.Requests[i]
	}
	exiles := h.exiles()
	for _, a := range h.Arrivals {
		r := requests[clientID(a.ID)]
		if r == nil { // trial request of a proxy, or request of an unrecorded client
			continue
		}
		for _, x := range exiles {
			_, address, _ := strings.Cut(x.key, "/")
			if address != a.Engine || a.From.Before(x.From) || !x.To.IsZero() && a.From.After(x.To) || !h.whole(x) {
				continue
			}
			late := a.From.Sub(x.From)
			if late <= follows+h.stalled(x.From, a.From) {
				continue
			}
			before := x.op.From.Add(-etcdRecovery)
			if h.faulty(before, a.From, etcdAnd(r.Proxy)...) != nil {
				v.Excused["a proxy could not follow etcd"]++
				continue
			}
			if h.faulty(r.From.Add(-time.Second), a.From, x.name) != nil {
				v.Excused["a request arrived late at an engine with a fault"]++
				continue
			}
			v.add("arrivals", a.From, []string{r.ID, a.Engine}, "%s through %s arrived at %s %s after %s", r.ID, r.Proxy, a.Engine, late.Round(time.Millisecond), x.op.Verb)
		}
	}
}

var etcdNames = numbered("etcd", 3)

// etcdAnd returns the targets of faults that keep a proxy from following etcd.
func etcdAnd(proxy string) []string {
	return append(slices.Clone(etcdNames), "etcd", "machine", proxy)
}

// whole reports whether an exile concerns all roles of its engine.
func (h *History) whole(x exile) bool {
	for _, e := range h.Engines {
		if e.Name == x.name {
			return e.Role != "both" || strings.HasPrefix(x.op.Instance, "both/")
		}
	}
	return false
}

// clientID returns the id that the client sent, to which proxies append -<8 digits>.
func clientID(id string) string {
	if i := strings.LastIndexByte(id, '-'); i > 0 {
		return id[:i]
	}
	return id
}

// checkDrainWait: after drain --wait has returned 0, no request runs on the instance and none
// starts.
func checkDrainWait(h *History, v *Verdict) {
	for _, x := range h.exiles() {
		if !h.whole(x) {
			continue
		}
		_, address, _ := strings.Cut(x.key, "/")
		for i := range h.Ops {
			o := &h.Ops[i]
			if !o.Wait || o.Code != 0 || !o.concerns("decode", address) && !o.concerns("prefill", address) || o.To.Before(x.From) || !x.To.IsZero() && o.To.After(x.To) {
				continue
			}
			for _, a := range h.Arrivals {
				if a.Engine != address || strings.HasPrefix(a.ID, "pd-trial-") || !x.To.IsZero() && a.From.After(x.To) {
					continue
				}
				who := []string{clientID(a.ID), address}
				if a.From.After(o.To) {
					if h.faulty(o.From.Add(-settled), a.From, x.name) != nil {
						v.Excused["a cancelled request was read late by an engine with a fault"]++
						continue
					}
					v.add("drain", a.From, who, "%s arrived at %s after drain --wait had returned", a.ID, address)
					continue
				}
				end := a.To
				if end.IsZero() {
					if h.faulty(a.From, o.To.Add(leaves), x.name) != nil {
						continue // its engine was killed
					}
				} else if end.Sub(o.To) <= leaves+h.stalled(o.To, end) {
					continue
				}
				if h.faulty(a.From, o.To.Add(leaves), x.name) != nil {
					v.Excused["a cancelled request was read late by an engine with a fault"]++
					continue
				}
				v.add("drain", o.To, who, "%s was running at %s when drain --wait returned; it ended at %s", a.ID, address, h.clock(a.To))
			}
		}
	}
}

// checkAcknowledged: a change that was acknowledged with a revision is in etcd at that revision.
func checkAcknowledged(h *History, v *Verdict) {
	at := map[int64][]Change{}
	for _, c := range h.Changes {
		at[c.Revision] = append(at[c.Revision], c)
	}
	for _, o := range h.Ops {
		// The suite's watch may lose an event that etcd is about to send when it is wiped.
		if o.Code != 0 || o.Revision == 0 || o.Verb == "deregister" || h.wiped(h.Start, o.To.Add(time.Second)) {
			continue
		}
		_, address, _ := strings.Cut(o.Instance, "/")
		if !slices.ContainsFunc(at[o.Revision], func(c Change) bool { return strings.HasSuffix(c.Key, "/"+address) }) && !h.nothingToUndo(&o) {
			v.add("acknowledged", o.To, []string{address}, "%s of %s via %s is not in etcd at revision %d", o.Verb, o.Instance, o.Via, o.Revision)
		}
	}
}

// nothingToUndo reports whether an op undoes an override that etcd did not have at its revision.
func (h *History) nothingToUndo(o *Op) bool {
	role, address, _ := strings.Cut(o.Instance, "/")
	there := map[string]bool{}
	for _, c := range h.Changes {
		for _, one := range roles(role) {
			if key := "/override/" + one + "/" + address; c.Revision <= o.Revision && strings.HasSuffix(c.Key, key) {
				there[key] = !c.Deleted
			}
		}
	}
	undo := slices.Contains([]string{"undrain", "uncordon", "weight-default"}, o.Verb)
	return undo && !slices.Contains(slices.Collect(maps.Values(there)), true)
}

// checkPolls: a proxy's snapshot equals etcd at the snapshot's revision. It may list instances
// without a key only with a view, such as orphan, or an intent to remove them.
func checkPolls(h *History, v *Verdict) {
	changes := slices.Clone(h.Changes)
	slices.SortStableFunc(changes, func(a, b Change) int { return int(a.Revision - b.Revision) })
	polls := slices.DeleteFunc(slices.Clone(h.Polls), func(p Poll) bool { return h.wiped(h.Start, p.At) })
	slices.SortStableFunc(polls, func(a, b Poll) int { return int(a.Revision - b.Revision) })
	keys, intents, lost := map[string]int64{}, map[string]string{}, map[string]time.Time{}
	reported := map[string]bool{}
	i := 0
	for _, p := range polls {
		for ; i < len(changes) && changes[i].Revision <= p.Revision; i++ {
			applyChange(changes[i], keys, intents)
			lost[strings.TrimPrefix(changes[i].Key, "/pd/")] = changes[i].At // if it was deleted
		}
		if i > 0 && changes[i-1].Revision > p.Revision || i == 0 {
			continue
		}
		// A proxy keeps an instance's view while it asks etcd about the lease of the lost key.
		asking := func(key string) bool {
			return p.At.Sub(lost[key]) < settled || h.faulty(p.At.Add(-etcdRecovery), p.At, etcdAnd(p.Proxy)...) != nil
		}
		for _, d := range differences(p, keys, intents, h.Garbage, asking) {
			if text := p.Proxy + ": " + d; !reported[text] {
				reported[text] = true
				v.add("snapshots", p.At, []string{p.Proxy}, "at revision %d %s", p.Revision, text)
			}
		}
	}
}

// applyChange applies an event to the keys of instances, by role/address, and to their intents.
func applyChange(c Change, keys map[string]int64, intents map[string]string) {
	rest, ok := strings.CutPrefix(c.Key, "/pd/")
	if !ok {
		return
	}
	name, override := strings.CutPrefix(rest, "override/")
	switch {
	case override && c.Deleted:
		delete(intents, name)
	case override:
		intents[name] = c.Value
	case !strings.HasPrefix(rest, "prefill/") && !strings.HasPrefix(rest, "decode/"):
	case c.Deleted:
		delete(keys, name)
	default:
		keys[name] = c.Revision
	}
}

// differences compares a snapshot with etcd. asking reports whether a proxy may not know yet why an
// instance has no key, or may not have read etcd; nil means never.
func differences(p Poll, keys map[string]int64, intents map[string]string, garbage map[string]bool, asking func(key string) bool) []string {
	var out []string
	seen := map[string]Seen{}
	for _, s := range p.Instances {
		if s.Pending {
			continue
		}
		seen[s.Key] = s
		if _, ok := keys[s.Key]; !ok && s.View == "" && s.Intent != "removed" && (asking == nil || !asking(s.Key)) {
			out = append(out, s.Key+" has no key in etcd, and the proxy uses it")
		}
		if s.Intent != "" && !strings.Contains(intents[s.Key], `"`+s.Intent+`"`) {
			out = append(out, fmt.Sprintf("%s is %s, and etcd has %q", s.Key, s.Intent, intents[s.Key]))
		}
	}
	for _, k := range slices.Sorted(maps.Keys(keys)) {
		switch s, ok := seen[k]; {
		case strings.Contains(intents[k], `"removed"`):
		case !ok && garbage[k] && asking != nil && asking(k): // a membership on disk has no rejected entries
		case !ok:
			out = append(out, k+" is in etcd, and the proxy does not list it")
		case s.Revision != keys[k] && !garbage[k]:
			out = append(out, fmt.Sprintf("%s has revision %d, and etcd %d", k, s.Revision, keys[k]))
		case s.Intent == "" && (strings.Contains(intents[k], `"drain"`) || strings.Contains(intents[k], `"cordon"`)):
			out = append(out, fmt.Sprintf("%s has no intent, and etcd has %q", k, intents[k]))
		}
	}
	return out
}

// longestEjection is the maximum time of an ejection, which doubles with each repeated failure.
const longestEjection = 30 * time.Second

// checkEnd: within an audit interval of the last fault, every snapshot equals etcd. Afterwards all instances
// are used, in-flight counters are 0, no process has crashed, and proxies have released their resources.
func checkEnd(h *History, v *Verdict) {
	end := h.Start
	for _, f := range h.Faults {
		if f.To.After(end) {
			end = f.To
		}
	}
	var before Usage
	for _, f := range h.Final {
		before.Goroutines = max(before.Goroutines, f.Before.Goroutines)
		before.Descriptors = max(before.Descriptors, f.Before.Descriptors)
		before.Heap = max(before.Heap, f.Before.Heap)
	}
	for _, f := range h.Final {
		who := []string{f.Proxy}
		switch limit := h.Audit + h.stalled(end, end.Add(max(f.Lag, f.Used))); {
		case f.Differs != "":
			v.add("converges", end, who, "%s differs from etcd %s after the last fault: %s", f.Proxy, f.Lag.Round(time.Millisecond), f.Differs)
		case f.Lag > limit:
			v.add("converges", end, who, "%s differed from etcd for %s after the last fault, want %s", f.Proxy, f.Lag.Round(time.Millisecond), limit)
		case f.Used > limit+longestEjection:
			v.add("converges", end, who, "%s had ejected an instance for %s after the last fault, want %s", f.Proxy, f.Used.Round(time.Millisecond), limit+longestEjection)
		}
		for _, in := range slices.Sorted(maps.Keys(f.InFlight)) {
			v.add("counters", end, who, "%s has %d requests in flight on %s after the load", f.Proxy, f.InFlight[in], in)
		}
		for _, u := range []struct {
			name            string
			before, after   int64
			factor, allowed int64
		}{
			{"goroutines", int64(before.Goroutines), int64(f.After.Goroutines), 1, 100},
			{"descriptors", int64(before.Descriptors), int64(f.After.Descriptors), 1, 100},
			{"bytes of heap", before.Heap, f.After.Heap, 2, 32 << 20},
		} {
			if u.after > u.factor*u.before+u.allowed {
				v.add("resources", end, who, "%s has %d %s after the load, %d before", f.Proxy, u.after, u.name, u.before)
			}
		}
	}
	for _, e := range h.Engines {
		if e.Running+e.Waiting != 0 {
			v.add("counters", end, []string{e.Address}, "%s has %d running and %d waiting requests after the load", e.Name, e.Running, e.Waiting)
		}
		for _, c := range e.Complaints {
			v.add("engines", end, []string{e.Address}, "%s: %s", e.Name, c)
		}
	}
	for _, c := range h.Crashes {
		v.add("crashes", end, nil, "%s", c)
	}
}
