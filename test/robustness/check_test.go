package robustness

import (
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pdmesh/pdmesh/sim/testkit"
)

// at returns a time of the hand-made histories, in seconds.
func at(s float64) time.Time {
	return time.Unix(1000, 0).Add(time.Duration(s * float64(time.Second)))
}

func fault(s Span, kind, target string) Fault { return Fault{Span: s, Kind: kind, Target: target} }

func span(from, to float64) Span { return Span{at(from), at(to)} }

const (
	d1 = "127.0.0.1:1"
	d2 = "127.0.0.1:2"
	p1 = "127.0.0.1:3"
)

// good returns a history that breaks no rule: decode-1 is drained from revision 10 at 20 s to
// revision 20 at 30 s, and the deletion of the drain is an event. decode-2 is killed at 40 s.
func good() *History {
	serves := []Serves{{at(0), []string{ModelA}}}
	request := func(id string, from float64, decode string, revision int64) Request {
		return Request{Span: span(from, from+1), ID: id, Proxy: "proxy-1", Route: completions, Model: ModelA, Outcome: OK, Prefill: p1, Decode: decode, Revision: revision}
	}
	return &History{
		Start: at(0), Audit: 10 * time.Second,
		Engines: []Engine{{Name: "decode-1", Role: "decode", Address: d1}, {Name: "decode-2", Role: "decode", Address: d2}, {Name: "prefill-1", Role: "prefill", Address: p1}},
		Models:  map[string][]Serves{"decode-1": serves, "decode-2": serves, "prefill-1": serves},
		Requests: []Request{
			request("a", 10, d1, 5), request("b", 19, d1, 5), request("c", 25, d2, 12), request("d", 35, d1, 20), request("e", 50, d2, 21),
		},
		Arrivals: []Arrival{
			{span(10, 11), d1, "a-00000001"}, {span(19.1, 20), d1, "b-00000001"}, {span(25, 26), d2, "c-00000001"}, {span(35, 36), d1, "d-00000001"},
			{Span{From: at(39)}, d2, "x-00000001"}, {span(25, 26), d1, "pd-trial-1"},
		},
		Faults: []Fault{fault(span(40, 43), "kill", "decode-2"), fault(span(1, 2), "stop", "proxy-2")},
		Ops: []Op{
			{Span: span(19.5, 20.5), Via: "pdctl", Verb: "drain", Instance: "decode/" + d1, Wait: true, Revision: 10},
			{Span: span(30, 30.1), Via: "proxy-1", Verb: "undrain", Instance: "decode/" + d1, Revision: 20},
			{Span: span(31, 31.1), Via: "proxy-1", Verb: "undrain", Instance: "decode/" + d1, Revision: 22}, // changes nothing
		},
		Changes: []Change{
			{at(1), 2, "/pd/decode/" + d1, false, "{}"}, {at(1), 3, "/pd/decode/" + d2, false, "{}"}, {at(1), 4, "/pd/prefill/" + p1, false, "{}"},
			{at(20), 10, "/pd/override/decode/" + d1, false, `{"state":"drain"}`}, {at(30), 20, "/pd/override/decode/" + d1, true, ""},
			{at(45), 21, "/pd/decode/" + d2, true, ""},
		},
		Polls: []Poll{
			{at(5), "proxy-1", 5, []Seen{{"decode/" + d1, "", "", 2, false}, {"decode/" + d2, "", "", 3, false}, {"prefill/" + p1, "", "", 4, false}}},
			{at(22), "proxy-1", 12, []Seen{{"decode/" + d1, "", "drain", 2, false}, {"decode/" + d2, "", "", 3, false}, {"prefill/" + p1, "", "", 4, false}}},
			{at(52), "proxy-1", 21, []Seen{{"decode/" + d1, "", "", 2, false}, {"decode/" + d2, "orphan", "", 3, false}, {"prefill/" + p1, "", "", 4, false}}},
		},
		Final: []Final{{Proxy: "proxy-1", Lag: time.Second, Before: Usage{50, 50, 10 << 20}, After: Usage{60, 60, 12 << 20}}},
	}
}

// deregistered turns the drain into a deregistration that proxy-1 has missed.
func deregistered(h *History) {
	h.Ops[0].Verb, h.Ops[0].Wait, h.Ops[0].Revision, h.Ops[1].Verb, h.Ops[1].Revision = "deregister", false, 0, "register", 0
	h.Changes[3].Key, h.Changes[3].Deleted, h.Changes[4] = "/pd/decode/"+d1, true, Change{at(30), 20, "/pd/decode/" + d1, false, "{}"}
	h.Polls[1].Instances[0].View, h.Polls[1].Instances[0].Intent, h.Polls[2].Instances[0].Revision = "orphan", "", 20
	h.Requests[2].Decode = d1
}

func TestCheck_GoodHistory(t *testing.T) {
	t.Parallel()
	v := Check(good())
	assert.True(t, len(v.Violations) <= 0 && len(v.Excused) <= 0, "violations %v, excused %v", v.Violations, v.Excused)
}

// Each rule rejects a history in which one thing is changed.
func TestCheck_BadHistories(t *testing.T) {
	t.Parallel()
	fails := func(r *Request, o Outcome, text string) { r.Outcome, r.Err = o, text }
	for name, tc := range map[string]struct {
		rule string
		bad  func(h *History)
	}{
		"an answer is wrong": {"answers", func(h *History) { fails(&h.Requests[0], Wrong, "other text") }},
		"a proxy that had lost its membership": {"lost", func(h *History) {
			r := &h.Requests[1]
			r.Outcome, h.Faults = Failed, append(h.Faults, fault(span(18, 19), "kill-forget", r.Proxy))
		}},
		"a request is lost":                  {"lost", func(h *History) { fails(&h.Requests[0], Failed, "status 502") }},
		"a request hangs":                    {"lost", func(h *History) { fails(&h.Requests[0], TimedOut, "") }},
		"one instance is drained, one able":  {"lost", func(h *History) { fails(&h.Requests[2], Failed, "status 503") }},
		"a healthy proxy loses a connection": {"lost", func(h *History) { fails(&h.Requests[0], Transport, "EOF") }},
		"a stream breaks without a reason":   {"broken", func(h *History) { fails(&h.Requests[0], Broken, "EOF") }},
		"a movable stream is not continued": {"broken", func(h *History) {
			h.Continue, h.Requests[0].Stream = true, true
			fails(&h.Requests[0], Broken, "lost")
			h.Faults = append(h.Faults, fault(h.Requests[0].Span, "kill", "decode-1"))
		}},
		"another engine had the fault": {"broken", func(h *History) { h.Requests[0].Span = span(41, 42); fails(&h.Requests[0], Broken, "EOF") }},
		"a proxy that was cut from etcd loses a connection": {"lost", func(h *History) {
			fails(&h.Requests[0], Transport, "EOF")
			h.Faults = append(h.Faults, fault(h.Requests[0].Span, "cut-etcd", "proxy-1"))
		}},
		"a proxy that was cut from etcd breaks a stream": {"broken", func(h *History) {
			fails(&h.Requests[0], Broken, "EOF")
			h.Faults = append(h.Faults, fault(h.Requests[0].Span, "to-etcd", "proxy-1"))
		}},
		"a running proxy knows no instances": {"lost", func(h *History) {
			fails(&h.Requests[0], Failed, "503: it has not read the list of instances yet")
			h.Faults = append(h.Faults, fault(h.Requests[0].Span, "cut-etcd", "proxy-1"))
		}},
		"all attempts are used up while KV transfers fail": {"lost", func(h *History) {
			fails(&h.Requests[0], Failed, "500")
			h.Requests[0].Attempts = 4
			h.Faults = append(h.Faults, fault(h.Requests[0].Span, "cut", "prefill-1"+TransferLink))
		}},
		"old blocks are read after all proxies knew": {"answers", func(h *History) {
			h.Requests[0].Outcome = Wrong
			h.Faults = append(h.Faults, fault(span(9, 10.5), "restart-behind", "prefill-1"))
		}},
		"old blocks are read by the engine that was stopped": {"answers", func(h *History) {
			h.Requests[0].Outcome = Wrong
			h.Faults = append(h.Faults, Fault{span(9, 12), "restart-behind", "prefill-1", d1})
		}},
		"an orphan is picked, and only later etcd had a fault": {"picks", func(h *History) {
			deregistered(h)
			h.Faults = append(h.Faults, fault(span(24, 26), "stop", "etcd-1"))
		}},
		"a drained instance is picked": {"picks", func(h *History) { h.Requests[2].Decode = d1 }},
		"picked long before the undrain ends": {"picks", func(h *History) {
			h.Requests[3].Decode, h.Requests[3].Revision = d1, 19
			h.Requests[3].Span = span(28, 29)
		}},
		"a request arrives after the drain": {"arrivals", func(h *History) {
			h.Ops[0].Wait = false
			h.Arrivals[2].Engine = d1
		}},
		"the drain's proof overlooks a request": {"drain", func(h *History) { h.Arrivals[1].To = at(24) }},
		"a request starts after the proof":      {"drain", func(h *History) { h.Arrivals[2].Engine, h.Arrivals[2].ID = d1, "other-1" }},
		"a request never ends":                  {"drain", func(h *History) { h.Arrivals[1].To = time.Time{} }},
		"an acknowledged change is not stored":  {"acknowledged", func(h *History) { h.Ops[1].Revision = 19 }},
		"a snapshot lacks an instance":          {"snapshots", func(h *History) { h.Polls[0].Instances = h.Polls[0].Instances[1:] }},
		"a snapshot has an old record":          {"snapshots", func(h *History) { h.Polls[0].Instances[1].Revision = 2 }},
		"a snapshot lacks a drain":              {"snapshots", func(h *History) { h.Polls[1].Instances[0].Intent = "" }},
		"a snapshot missed a deleted drain":     {"snapshots", func(h *History) { h.Polls[2].Instances[0].Intent = "drain" }},
		"a snapshot missed a deleted instance":  {"snapshots", func(h *History) { h.Polls[2].Instances[1].View = "" }},
		"a proxy stays different":               {"converges", func(h *History) { h.Final[0].Differs = "it lacks an instance" }},
		"a proxy is different for too long":     {"converges", func(h *History) { h.Final[0].Lag = 11 * time.Second }},
		"an instance stays ejected":             {"converges", func(h *History) { h.Final[0].Used = 41 * time.Second }},
		"a counter is left":                     {"counters", func(h *History) { h.Final[0].InFlight = map[string]int64{d1: 1} }},
		"a counter is negative":                 {"counters", func(h *History) { h.Final[0].InFlight = map[string]int64{d1: -1} }},
		"an engine still runs a request":        {"counters", func(h *History) { h.Engines[0].Running = 1 }},
		"an engine complains":                   {"engines", func(h *History) { h.Engines[0].Complaints = []string{"transfer params used twice"} }},
		"goroutines are left":                   {"resources", func(h *History) { h.Final[0].After.Goroutines = 500 }},
		"descriptors are left":                  {"resources", func(h *History) { h.Final[0].After.Descriptors = 500 }},
		"memory is left":                        {"resources", func(h *History) { h.Final[0].After.Heap = 100 << 20 }},
		"a process crashes":                     {"crashes", func(h *History) { h.Crashes = []string{"proxy-1"} }},
		"the budget is refused without retries": {"budget", func(h *History) {
			fails(&h.Requests[0], Failed, "503: too many requests are being retried")
			h.Requests[0].Attempts = 4
		}},
	} {
		h := good()
		tc.bad(h)
		v := Check(h)
		if len(v.Violations) == 0 || !slices.ContainsFunc(v.Violations, func(v Violation) bool { return v.Rule == tc.rule }) {
			t.Errorf("%s: violations %v, excused %v, want one of rule %s", name, v.Violations, v.Excused, tc.rule)
		}
		for _, one := range v.Violations {
			assert.Equal(t, tc.rule, one.Rule, "%s: also violates %s", name, one)
		}
	}
}

// The documented exceptions are counted, not reported.
func TestCheck_Excused(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		excuse string
		change func(h *History)
	}{
		"no instance is able": {"no decode instance could serve the request", func(h *History) {
			h.Requests[2].Outcome = Failed
			h.Faults = append(h.Faults, fault(span(22, 23), "503", "decode-2"))
		}},
		"another model": {"no decode instance could serve the request", func(h *History) {
			h.Requests[0].Outcome, h.Requests[0].Model = Failed, ModelB
		}},
		"the proxy was killed": {"the proxy of the request had a fault", func(h *History) {
			h.Requests[0].Outcome = Transport
			h.Faults = append(h.Faults, fault(span(10.5, 12), "kill", "proxy-1"))
		}},
		"the proxy was stopping": {"the proxy of the request had a fault", func(h *History) {
			h.Requests[0].Outcome, h.Requests[0].Err = Failed, "status 503: this proxy is stopping"
			h.Faults = append(h.Faults, fault(h.Requests[0].Span, "term", "proxy-1"))
		}},
		"the decode engine was killed": {"a stream broke with its decode instance or its proxy", func(h *History) {
			h.Requests[4].Outcome, h.Requests[4].Span = Broken, span(39, 41)
		}},
		"the proxy was cut from etcd": {"a proxy could not follow etcd", func(h *History) {
			h.Ops[0].Wait = false
			h.Arrivals[2].Engine = d1
			h.Faults = append(h.Faults, fault(span(19, 26), "cut-etcd", "proxy-1"))
		}},
		"a deregistration was missed": {"a proxy that missed the drain of an agent used the engine as an orphan", func(h *History) {
			deregistered(h)
			h.Faults = append(h.Faults, fault(span(19, 24), "cut-etcd", "proxy-1"))
		}},
		"a restart with the same engine id": {"decode read from a prefill engine that had restarted with the same engine id, before proxies knew", func(h *History) {
			h.Requests[0].Outcome = Wrong
			h.Faults = append(h.Faults, fault(Span{h.Requests[0].From, h.Requests[0].To.Add(time.Second)}, "restart-behind", "prefill-1"))
		}},
		"engines refuse": {"an engine refused the request with 429, and no other could take it", func(h *History) {
			h.Requests[0].Outcome, h.Requests[0].Err = Failed, "status 429"
			h.Faults = append(h.Faults, fault(h.Requests[0].Span, "429", "prefill-1"))
		}},
		"no membership": {"the proxy began without a membership beside an etcd that was wiped", func(h *History) {
			r := &h.Requests[0]
			r.Outcome, h.Wipes = Failed, append(h.Wipes, r.From.Add(-time.Second))
			h.Faults = append(h.Faults, fault(Span{r.From.Add(-time.Second), r.From}, "kill-forget", r.Proxy))
		}},
		"no membership after a stall": {"no decode instance could serve the request", func(h *History) {
			r := &h.Requests[1]
			r.Outcome, h.Faults = Failed, append(h.Faults, fault(span(18, 19), "kill-forget", r.Proxy))
			h.Polls = nil
			for _, d := range []string{d1, d2} { // their leases have ended
				h.Changes = slices.Insert(h.Changes, 3, Change{at(18), 5, "/pd/decode/" + d, true, ""})
			}
		}},
		"an instance is allowed just before etcd is wiped": {"no decode instance could serve the request", func(h *History) {
			h.Requests[0].Outcome = Failed
			h.Faults = append(h.Faults, fault(span(9, 11), "503", "decode-2"), fault(span(3.1, 9), "wipe", "etcd"))
			h.Ops = append(h.Ops, Op{Span: span(1, 2), Verb: "remove", Instance: "decode/" + d1}, Op{Span: span(2.5, 3), Verb: "allow", Instance: "decode/" + d1})
		}},
		"the budget": {"the retry budget was used up", func(h *History) {
			h.Requests[0].Outcome, h.Requests[0].Err = Failed, "503: too many requests are being retried"
			h.Requests[0].Attempts = 100
		}},
	} {
		h := good()
		tc.change(h)
		if v := Check(h); len(v.Violations) > 0 || v.Excused[tc.excuse] != 1 {
			t.Errorf("%s: violations %v, excused %v", name, v.Violations, v.Excused)
		}
	}
}

// Stalls of the machine extend the limits that depend on time.
func TestCheck_Stalls(t *testing.T) {
	t.Parallel()
	h := good()
	h.Final[0].Lag = 12 * time.Second
	h.Stalls = []Span{span(44, 48)}
	v := Check(h)
	assert.Empty(t, v.Violations, "%v", v.Violations)
}

func TestExcerpt(t *testing.T) {
	t.Parallel()
	h := good()
	h.Requests[2].Decode = d1
	v := Check(h).Violations[0]
	text := h.Excerpt(v, 6*time.Second, 30)
	require.True(t, testkit.Contains(t, text, "drain decode/"+d1, "arrival of c-00000001", "request c to proxy-1", "etcd    10"))
	assert.Equal(t, 3, strings.Count(h.Excerpt(v, 6*time.Second, 3), "\n"), "lines")
}

// A plan depends only on its seed, and all kinds of faults occur in some seed.
func TestPlan(t *testing.T) {
	t.Parallel()
	kinds := map[string]bool{}
	shapes := map[string]bool{}
	queues := 0
	for seed := range uint64(200) {
		p := NewPlan(seed, time.Minute)
		require.True(t, reflect.DeepEqual(p, NewPlan(seed, time.Minute)), "seed %d has two plans", seed)
		if p.Queue {
			queues++
		}
		for _, lane := range p.Lanes {
			for i, a := range lane.Actions {
				kinds[a.Kind] = true
				if a.Target == "" || a.For <= 0 || a.At < 0 || a.At >= p.For || i > 0 && a.At < lane.Actions[i-1].At {
					t.Errorf("seed %d: %+v", seed, a)
				}
			}
		}
		for _, e := range p.Engines {
			shapes[e.Role+" "+e.Connector+" "+strings.Join(e.Models, ",")] = true
		}
	}
	assert.Equal(t, 50, queues, "seeds with a queue, of 200")
	for _, kind := range slices.Concat(engineFaults, streamFaults, linkFaults, []string{"restart-behind", "unload-adapter"}, proxyFaults, etcdFaults, exclusive, operators, spareOps) {
		assert.True(t, kinds[kind], "no seed has %s", kind)
	}
	for _, shape := range []string{"both nixl " + ModelA, "prefill mooncake " + ModelA, "decode mooncake " + ModelA, "decode nixl " + ModelA + "," + ModelB} {
		assert.True(t, shapes[shape], "no seed has the engine %q", shape)
	}
}

func TestParseJournal(t *testing.T) {
	t.Parallel()
	got, err := parseJournal(d1, []byte(`{"at":1,"seq":1,"id":"a"}
{"at":2,"seq":2,"id":"b"}
{"at":3,"seq":1,"end":true}
{"at":4,"seq":1,"id":"c"}
{"at":5,"seq":1,"end":true}
{"at":6,"se`))
	want := []Arrival{{Span{time.Unix(0, 1), time.Unix(0, 3)}, d1, "a"}, {Span{From: time.Unix(0, 2)}, d1, "b"}, {Span{time.Unix(0, 4), time.Unix(0, 5)}, d1, "c"}}
	assert.True(t, err == nil && reflect.DeepEqual(got, want), "%v, %v", got, err)
}
