package dashboard

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"math"
	"net/http"
	"net/http/httptest"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"github.com/sirupsen/logrus"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pdmesh/pdmesh/internal/forward"
	"github.com/pdmesh/pdmesh/internal/forward/flow"
	"github.com/pdmesh/pdmesh/internal/forward/relay"
	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/internal/observe/figures"
	"github.com/pdmesh/pdmesh/internal/observe/metrics"
	"github.com/pdmesh/pdmesh/sim/testkit"
	"github.com/pdmesh/pdmesh/sim/testkit/leak"
)

func TestMain(m *testing.M) { leak.Main(m) }

// stage has the inputs of a Board.
type stage struct {
	snapshot atomic.Pointer[instance.Snapshot]
	inFlight atomic.Int64
	lists    atomic.Int64 // listed entries
	mu       sync.Mutex   // guards the fields below
	etcd     Etcd
	proxies  []Proxy
	broken   error // of the list of proxies
	registry *prometheus.Registry
	metrics  *metrics.Metrics
	prompts  *prometheus.CounterVec
	figures  *figures.Fleet
	findings []Finding
	opinions map[instance.Key]instance.Opinion
}

func member(role instance.Role, address string, change ...func(*instance.Instance)) *instance.Instance {
	in := &instance.Instance{
		Key: instance.Key{Role: role, Address: address}, Verified: true, Lease: 7, CreateRevision: 3, ModRevision: 3,
		Record: instance.Record{State: instance.Ready, Models: []string{"m"}, ID: "life"},
	}
	for _, f := range change {
		f(in)
	}
	return in
}

// change changes what s.mu guards.
func (s *stage) change(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f()
}

func (s *stage) set(revision int64, all ...*instance.Instance) {
	is := instance.NewSnapshot(revision, all)
	was := s.snapshot.Swap(is)
	s.metrics.Follow(was, is)
	if was != nil {
		was.Supersede()
	}
}

func newStage() *stage {
	s := &stage{etcd: Etcd{State: "live", Live: true}, proxies: []Proxy{{ID: "me", Own: true, Applied: 3}}, registry: prometheus.NewRegistry()}
	s.metrics = metrics.New(s.registry, "", 0)
	s.prompts = prometheus.NewCounterVec(prometheus.CounterOpts{Name: figures.Prompts, Help: "h"}, []string{"instance", "what"})
	s.registry.MustRegister(s.prompts)
	s.set(3, member(instance.Prefill, "10.0.0.1:1"), member(instance.Decode, "10.0.0.2:1"))
	return s
}

func (s *stage) board() *Board {
	log := logrus.New()
	log.SetOutput(io.Discard)
	return New(Options{
		Self:    Self{ID: "me", Admin: true, Actions: []string{"add"}},
		Members: s.snapshot.Load,
		List: func(in *instance.Instance) instance.Listing {
			s.lists.Add(1)
			l, n := in.List(), s.inFlight.Load()
			l.InFlight = &n
			return l
		},
		Facts: func(*instance.Instance) Facts { return Facts{Connector: "nixl"} },
		Own: func() (*figures.Sample, error) {
			families, err := s.registry.Gather()
			return figures.NewSample(families, nil), err
		},
		Etcd: func() Etcd {
			s.mu.Lock()
			defer s.mu.Unlock()
			return s.etcd
		},
		Requests: s.inFlight.Load, Findings: func() []string { return []string{"all is well"} },
		Proxies: func(context.Context) (Fleet, error) {
			s.mu.Lock()
			defer s.mu.Unlock()
			return Fleet{Proxies: s.proxies, Figures: s.figures, Totals: s.figures, Findings: s.findings, Routes: []instance.ListedModelRoute{{Name: "chat"}}}, s.broken
		},
		Opinion: func(k instance.Key) instance.Opinion {
			s.mu.Lock()
			defer s.mu.Unlock()
			return s.opinions[k]
		},
		Log: log,
	})
}

// read reads the events that a viewer has received.
func read(t *testing.T, v *viewer) (names []string, all []message) {
	t.Helper()
	for {
		select {
		case e := <-v.events:
			head, data, _ := strings.Cut(string(e), "\n")
			var m message
			require.NoError(t, json.Unmarshal([]byte(strings.TrimPrefix(strings.TrimSpace(data), "data: ")), &m),
				"in %s", e)
			names, all = append(names, strings.TrimPrefix(head, "event: ")), append(all, m)
		default:
			return names, all
		}
	}
}

// run runs f with a Board in a bubble of virtual time.
func run(t *testing.T, f func(t *testing.T, s *stage, b *Board)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		s := newStage()
		b := s.board()
		ctx, cancel := context.WithCancel(t.Context())
		go b.Run(ctx)
		synctest.Wait()
		f(t, s, b)
		cancel()
		synctest.Wait()
	})
}

// advance lets time pass until the Board has done its work of that time.
func advance(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

func join(t *testing.T, b *Board) *viewer {
	t.Helper()
	v := b.viewers.join()
	require.True(t, v != nil, "too many viewers")
	synctest.Wait() // for the snapshot
	return v
}

// first returns the snapshot that a new viewer receives.
func first(t *testing.T, b *Board) message {
	t.Helper()
	v := join(t, b)
	defer b.viewers.leave(v)
	synctest.Wait()
	names, all := read(t, v)
	require.Equal(t, []string{"snapshot"}, names)
	return all[0]
}

// feedOf returns the texts of the feed about an instance or etcd.
func feedOf(t *testing.T, b *Board, who string) (texts []string) {
	t.Helper()
	for _, c := range first(t, b).Feed {
		if c.Who == who {
			texts = append(texts, c.Text)
		}
	}
	return texts
}

func TestSnapshotThenDiffs(t *testing.T) {
	t.Parallel()
	run(t, func(t *testing.T, s *stage, b *Board) {
		v := join(t, b)
		names, all := read(t, v)
		if len(names) != 1 || names[0] != "snapshot" || len(all[0].Rows) != 2 || len(all[0].Loads) != 2 || all[0].Self.ID != "me" || all[0].History == nil {
			t.Fatalf("at first %v: %+v", names, all)
		}
		s.inFlight.Store(4)
		s.set(5, member(instance.Prefill, "10.0.0.1:1"), member(instance.Decode, "10.0.0.3:1"))
		advance(time.Second)
		names, all = read(t, v)
		require.Len(t, names, 1)
		require.Equal(t, "diff", names[0])
		m := all[0]
		if len(m.Rows) != 2 || string(m.Rows["decode/10.0.0.2:1"]) != "null" || !strings.Contains(string(m.Rows["decode/10.0.0.3:1"]), `"connector":"nixl","weight":100,`) {
			t.Errorf("rows %s", m.Rows)
		}
		assert.Contains(t, string(m.Loads["prefill/10.0.0.1:1"]), `"n":4`, "loads %s", m.Loads)
		assert.True(t, len(m.Feed) == 2 && m.Feed[0].Text == "left" && m.Feed[1].Text == "joined", "feed %+v", m.Feed)
		assert.True(t, string(m.Parts["requests"]) == "4" && m.Parts["findings"] == nil, "parts %s", m.Parts)
		advance(time.Second)
		if _, all = read(t, v); len(all) != 1 || all[0].Rows != nil || all[0].Loads != nil || all[0].Feed != nil {
			t.Errorf("nothing has changed, and still %+v", all)
		}
	})
}

// Each entry is listed once a second, however many viewers there are, and never without viewers.
func TestViewers_ShareOneCollector(t *testing.T) {
	t.Parallel()
	run(t, func(t *testing.T, s *stage, b *Board) {
		advance(10 * time.Second)
		assert.EqualValues(t, 0, s.lists.Load(), "entries were listed without viewers")
		var all []*viewer
		for range maxViewers {
			all = append(all, join(t, b))
		}
		assert.True(t, b.viewers.join() == nil, "one more joins")
		advance(3 * time.Second)
		n := s.lists.Load()
		assert.True(t, n <= 2*4, "2 entries were listed %d times in 3 s", n)
		for _, v := range all {
			names, _ := read(t, v)
			require.True(t, len(names) >= 3 && names[0] == "snapshot" && names[1] == "diff", "a viewer got %v", names)
			b.viewers.leave(v)
		}
		advance(time.Second)
		before := s.lists.Load()
		advance(10 * time.Second)
		assert.Equal(t, before, s.lists.Load(), "entries were listed after all had left")
	})
}

func TestSlowViewer_Disconnected(t *testing.T) {
	t.Parallel()
	run(t, func(t *testing.T, _ *stage, b *Board) {
		slow, quick := join(t, b), join(t, b)
		for range maxLag + 3 {
			advance(time.Second)
			read(t, quick)
		}
		select {
		case <-slow.slow:
		default:
			t.Error("the slow one is still there")
		}
		select {
		case <-quick.slow:
			t.Error("the quick one was sent away")
		default:
		}
	})
}

// The lines show the times of requests at the instances that served them.
func TestLines(t *testing.T) {
	t.Parallel()
	run(t, func(t *testing.T, s *stage, b *Board) {
		advance(time.Second) // the members are known
		p := instance.Key{Role: instance.Prefill, Address: "10.0.0.1:1"}
		count := func(asked, found float64) {
			s.prompts.WithLabelValues(p.Address, "asked").Add(asked)
			s.prompts.WithLabelValues(p.Address, "found").Add(found)
		}
		count(1000, 900) // before the shown interval
		advance(step * time.Second)
		count(200, 50)
		for range 10 {
			s.metrics.Done(&forward.Entry{Model: "m", Result: relay.Result{Outcome: relay.OutcomeOK, TTFT: 100 * time.Millisecond, Gap: 10 * time.Millisecond}, Route: flow.Route{Prefill: p.Address, Decode: "10.0.0.2:1"}, FirstToken: 100 * time.Millisecond})
		}
		s.metrics.Done(&forward.Entry{Route: flow.Route{Decode: "absent:1", DecodeOnly: "n"}, Result: relay.Result{Outcome: relay.OutcomeOK}})
		for _, outcome := range []string{relay.OutcomeClientError, relay.OutcomeClientGone, relay.OutcomeUnavailable, relay.OutcomeUpstream, relay.OutcomeBroken} {
			s.metrics.Done(&forward.Entry{Result: relay.Result{Outcome: outcome}})
		}
		advance(step * time.Second)
		m := first(t, b)
		h := m.History
		last := func(line []value) value { return line[len(line)-1] }
		for name, want := range map[string]value{"served": 11. / step, "failed": 3. / step, "refused": 2. / step, "alone": 1. / step} {
			got := last(h.Total[name])
			assert.True(t, got >= want*.99 && got <= want*1.01, "%s is %v, want %v", name, got, want)
		}
		near := func(what string, line []value, want value) {
			assert.True(t, len(line) != 0 && last(line) >= want*.7 && last(line) <= want,
				"%s is %v, want about %v", what, line, want)
		}
		near("first token", h.Total["first50"], 100)
		near("between tokens", h.Total["between95"], 10)
		near("prefill's first token", h.Of[p.String()][0], 100)
		near("decode's between tokens", h.Of["decode/10.0.0.2:1"][1], 10)
		if line := h.Of[p.String()][1]; line != nil {
			t.Errorf("prefill has %v between tokens", line)
		}
		assert.Contains(t, string(m.Loads[p.String()]), `"hit":0.25`)
	})
}

func TestEtcdAndProxies(t *testing.T) {
	t.Parallel()
	run(t, func(t *testing.T, s *stage, b *Board) {
		join(t, b) // the other proxies are read while there is a viewer
		advance(2 * time.Second)
		s.change(func() {
			s.etcd, s.broken = Etcd{State: "suspect", LastError: "no answer\x1b[2J"}, errors.New("no answer")
		})
		advance(proxiesEvery + 2*time.Second)
		m := first(t, b)
		assert.Contains(t, string(m.Parts["etcd"]), `"state":"suspect","live":false`)
		testkit.Contains(t, string(m.Parts["proxies"]), `"id":"me"`, `"error":"no answer"`) // the last ones that were read, and why they are old
		if n := len(m.Feed); n == 0 || m.Feed[n-1].Who != "etcd" || m.Feed[n-1].Kind != bad || strings.Contains(m.Feed[n-1].Text, "\x1b") {
			t.Errorf("feed %+v", m.Feed)
		}
	})
}

// A list of the membership is routine; only an etcd that does not answer is reported.
func TestEtcdInTheFeed(t *testing.T) {
	t.Parallel()
	run(t, func(t *testing.T, s *stage, b *Board) {
		for _, state := range []string{"listing", "live", "listing", "live", "suspect", "stale", "listing", "stale", "listing", "live"} {
			s.change(func() { s.etcd = Etcd{State: state, Live: state == "live"} })
			advance(time.Second)
		}
		assert.Equal(t, []string{"is suspect", "is stale", "responds again, and the watch is up to date"}, feedOf(t, b, "etcd"))
	})
}

func TestTenure(t *testing.T) {
	t.Parallel()
	run(t, func(t *testing.T, s *stage, b *Board) {
		time.Sleep(time.Hour)
		s.set(9, member(instance.Prefill, "10.0.0.1:1"), member(instance.Decode, "10.0.0.2:1", func(in *instance.Instance) { in.Lease, in.CreateRevision = 8, 9 }))
		synctest.Wait()
		m := first(t, b)
		var old, fresh Row
		_, _ = json.Unmarshal(m.Rows["prefill/10.0.0.1:1"], &old), json.Unmarshal(m.Rows["decode/10.0.0.2:1"], &fresh)
		now := time.Now().UnixMilli()
		assert.Equal(t, time.Hour.Milliseconds(), now-old.Since)
		assert.True(t, old.AtLeast)
		assert.Equal(t, now, fresh.Since, "a new lease")
		assert.False(t, fresh.AtLeast, "a new lease")
	})
}

// Two entries at one address are shown twice.
func TestNames(t *testing.T) {
	t.Parallel()
	f := &frame{rows: map[string]json.RawMessage{}}
	view := func(v instance.View) func(*instance.Instance) { return func(in *instance.Instance) { in.View = v } }
	var got []string
	for _, in := range []*instance.Instance{
		member(instance.Decode, "a:1"), member(instance.Decode, "a:1", view(instance.Pending)),
		member(instance.Decode, "b:1", view(instance.Rejected)), member(instance.Decode, "b:1", view(instance.Rejected)),
	} {
		name := f.name(in)
		f.rows[name] = json.RawMessage("{}")
		got = append(got, name)
	}
	assert.Equal(t, "decode/a:1, decode/a:1 pending, decode/b:1, decode/b:1 2", strings.Join(got, ", "), got)
}

// The stream over HTTP: its headers, its format, and its end when the proxy stops.
func TestEventsOverHTTP(t *testing.T) {
	t.Parallel()
	s := newStage()
	b := s.board()
	var work sync.WaitGroup
	ctx, cancel := context.WithCancel(t.Context())
	work.Go(func() { b.Run(ctx) })
	server := httptest.NewServer(b)
	t.Cleanup(func() { server.Close(); cancel(); work.Wait() })
	hc := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	get := func(path string) *http.Response {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, server.URL+path, nil)
		require.NoError(t, err)
		resp, err := hc.Do(req)
		require.NoError(t, err)
		return resp
	}
	resp := get(EventsPath)
	defer resp.Body.Close()
	if got := resp.Header.Get("Content-Type"); got != "text/event-stream" || resp.Header.Get("Cache-Control") != "no-store" {
		t.Errorf("header %v", resp.Header)
	}
	in := bufio.NewReader(resp.Body)
	for _, want := range []string{"retry: 2000\n", "\n", "event: snapshot\n", "data: {", "\n", "event: diff\n"} {
		if line, err := in.ReadString('\n'); err != nil || !strings.HasPrefix(line, want) {
			t.Fatalf("%q, %v; want %q", line, err, want)
		}
	}
	b.Close()
	_, err := io.Copy(io.Discard, in)
	assert.NoError(t, err, "the end of the proxy")
	late := get(EventsPath)
	defer late.Body.Close()
	assert.True(t, late.StatusCode == http.StatusServiceUnavailable && late.Header.Get("Retry-After") != "",
		"after the end: %s", late.Status)
}

// fleetOf returns the figures of a fleet in which a proxy has served n requests within ten seconds.
func fleetOf(n float64) *figures.Fleet {
	families := func(v float64) []*dto.MetricFamily {
		reg := prometheus.NewRegistry()
		requests := prometheus.NewCounterVec(prometheus.CounterOpts{Name: figures.Requests, Help: "h"}, []string{"outcome"})
		failed := prometheus.NewCounterVec(prometheus.CounterOpts{Name: figures.Failures, Help: "h"}, []string{"role", "instance", "class"})
		reg.MustRegister(requests, failed)
		requests.WithLabelValues("ok").Add(v)
		failed.WithLabelValues("decode", "10.0.0.2:1", "lost").Add(v)
		failed.WithLabelValues("decode", "10.0.0.2:1", "client_gone").Add(v)
		refused := prometheus.NewCounterVec(prometheus.CounterOpts{Name: figures.QueueRefused, Help: "h"}, []string{"class", "reason"})
		reg.MustRegister(refused)
		refused.WithLabelValues("batch", "full").Add(v)
		out, _ := reg.Gather() // a registry of counters has no errors
		return out
	}
	var h figures.History
	first, last := figures.NewSample(families(0), nil), figures.NewSample(families(n), []instance.ListedQueue{{Model: "m", Mode: "on", Waiting: map[string]int{"batch": 2}}})
	last.At = first.At.Add(10 * time.Second)
	h.Add(map[string]*figures.Sample{"a": first})
	h.Add(map[string]*figures.Sample{"a": last})
	return h.Fleet()
}

// With several proxies, the lines show the sum of all, without earlier points of this proxy.
func TestFiguresOfAllProxies(t *testing.T) {
	t.Parallel()
	run(t, func(t *testing.T, s *stage, b *Board) {
		v := join(t, b)
		// during returns the line of served requests after some seconds, with one request in each.
		var line []value
		during := func(seconds int) []value {
			for range seconds {
				s.metrics.Done(&forward.Entry{Result: relay.Result{Outcome: relay.OutcomeOK}})
				advance(time.Second)
				_, all := read(t, v)
				for _, m := range all {
					if m.History != nil {
						line = m.History.Total["served"]
					}
					if m.Point != nil {
						line = append(line, m.Point.Total["served"])
					}
				}
			}
			return line
		}
		own := during(12)
		require.True(t, slices.Contains(own, 1), "of this proxy: %v", own)
		s.change(func() {
			s.proxies = append(s.proxies, Proxy{ID: "a"}, Proxy{ID: "b", Missing: "refused"})
			s.figures, s.findings = fleetOf(70), []Finding{{Severity: "warning", Text: "decode/10.0.0.2:1: is down", Cure: "start it"}}
		})
		if all := during(12); slices.Contains(all, 1) || !slices.Contains(all, 7) {
			t.Errorf("of all proxies: %v", all)
		}
		m := first(t, b)
		for part, want := range map[string]string{
			"fleet": "true", "queues": `"batch":2`, "totals": `"refused":{"batch\nfull":70}`, "routes": `"name":"chat"`, "doctor": "is down", "proxies": `"missing":"refused"`,
			"failures": `[{"role":"decode","instance":"10.0.0.2:1","class":"lost","count":70}]`,
		} {
			got := string(m.Parts[part])
			assert.Contains(t, got, want, "%s: %s", part, got)
		}
		s.change(func() { s.proxies = s.proxies[:1] })
		own = during(12)
		assert.True(t, !slices.Contains(own, 7) && slices.Contains(own, 1), "of this proxy again: %v", own)
	})
}

// Figures of other proxies that can no longer be read, because etcd is unavailable, are not shown as current.
func TestFiguresOfAllProxies_Outdated(t *testing.T) {
	t.Parallel()
	run(t, func(t *testing.T, s *stage, b *Board) {
		s.change(func() { s.proxies, s.figures = append(s.proxies, Proxy{ID: "a"}), fleetOf(70) })
		v := join(t, b) // figures are collected while a viewer reads
		after := func(d time.Duration) map[string]json.RawMessage {
			for range d / time.Second {
				advance(time.Second)
				read(t, v)
			}
			return first(t, b).Parts
		}
		require.Equal(t, "true", string(after(2 * step * time.Second)["fleet"]), "figures of all proxies")
		s.change(func() { s.broken = errors.New("no answer") })
		parts := after(currentFor + 2*step*time.Second)
		assert.Equal(t, "false", string(parts["fleet"]), "figures of all proxies %s after etcd was lost", currentFor)
		testkit.Contains(t, string(parts["proxies"]), `"id":"a"`, `"error":"no answer"`)
	})
}

// An instance that leaves without a drain is shown until it returns, or for an hour.
func TestLost(t *testing.T) {
	t.Parallel()
	run(t, func(t *testing.T, s *stage, b *Board) {
		p, d1, d2 := member(instance.Prefill, "10.0.0.1:1"), member(instance.Decode, "10.0.0.2:1"), member(instance.Decode, "10.0.0.3:1")
		drained := member(instance.Decode, "10.0.0.4:1", func(in *instance.Instance) { in.Intent = instance.Drain })
		check := func(want ...string) {
			t.Helper()
			time.Sleep(2 * time.Second)
			var list []Lost
			require.NoError(t, json.Unmarshal(first(t, b).Parts["lost"], &list))
			var got []string
			for _, l := range list {
				got = append(got, string(l.Role)+"/"+l.Address)
			}
			assert.Equal(t, want, got, "lost")
		}
		s.set(4, p, d1, d2, drained)
		check()
		s.set(5, p)
		check("decode/10.0.0.2:1", "decode/10.0.0.3:1")
		s.set(6, p, d1)
		check("decode/10.0.0.3:1")
		time.Sleep(time.Hour)
		check()
	})
}

// Ejections by a proxy are in the feed.
func TestEjectedInFeed(t *testing.T) {
	t.Parallel()
	run(t, func(t *testing.T, s *stage, b *Board) {
		k := instance.Key{Role: instance.Decode, Address: "10.0.0.2:1"}
		for _, o := range []instance.Opinion{{View: instance.Ejected, Reason: "refused"}, {View: instance.Ejected, Reason: "lost"}, {}} {
			s.change(func() { s.opinions = map[instance.Key]instance.Opinion{k: o} })
			time.Sleep(2 * time.Second)
		}
		assert.Equal(t, []string{"is ejected: refused", "is no longer ejected"}, feedOf(t, b, k.Address))
	})
}

func TestRingKeepsTheLast(t *testing.T) {
	t.Parallel()
	var r ring
	assert.True(t, r.line() == nil && r.last() == none, "an empty ring has points")
	r.add(none)
	assert.True(t, r.line() == nil, "a ring in which nothing was measured has a line")
	for i := range points + 5 {
		r.add(value(i))
	}
	line := r.line()
	assert.True(t, len(line) == points && line[0] == 5 && line[points-1] == points+4 && r.last() == points+4,
		"%v", line)
	r.add(none)
	b, err := json.Marshal(r.line()[points-3:])
	want := "[63,64,null]"
	assert.True(t, err == nil && string(b) == want, "%s, %v; want %s", b, err, want)
	for v, want := range map[value]string{0: "0", 0.123456: "0.123", 12.345: "12.3", 1234.5: "1234", value(math.NaN()): "null"} {
		if b, _ := json.Marshal(v); string(b) != want {
			t.Errorf("%v is written %s, want %s", float32(v), b, want)
		}
	}
}

// largest is the limit for the bytes of the whole page.
const largest = 200 << 10

func TestPage(t *testing.T) {
	t.Parallel()
	p := newPage()
	assert.LessOrEqual(t, len(p.body), largest, "the page has %d bytes, more than %d", len(p.body), largest)
	w := httptest.NewRecorder()
	p.serve(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/", nil))
	h := w.Header()
	for name, want := range map[string]string{
		"X-Frame-Options": "DENY", "X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer", "Content-Type": "text/html; charset=utf-8",
	} {
		assert.Equal(t, want, h.Get(name), name)
	}
	policy := h.Get("Content-Security-Policy")
	for _, want := range []string{"default-src 'none'", "connect-src 'self'", "frame-ancestors 'none'", "base-uri 'none'", "require-trusted-types-for 'script'"} {
		assert.Contains(t, policy, want)
	}
	assert.NotContains(t, policy, "unsafe")
	// The digests match the contents of the page.
	for _, tag := range []string{"script", "style"} {
		m := regexp.MustCompile(`(?s)<`+tag+`>(.*?)</`+tag+`>`).FindAllSubmatch(w.Body.Bytes(), -1)
		require.Equal(t, 1, len(m), "%d times <%s>", len(m), tag)
		assert.Contains(t, policy, tag+"-src 'sha256-"+hash(m[0][1])+"'")
	}
	again := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/", nil)
	again.Header.Set("If-None-Match", h.Get("ETag"))
	w = httptest.NewRecorder()
	if p.serve(w, again); w.Code != http.StatusNotModified || w.Body.Len() > 0 {
		t.Errorf("unchanged: %d with %d bytes", w.Code, w.Body.Len())
	}
}

// The page loads nothing from other hosts, never parses text as HTML, and has no code in attributes.
func TestPage_NoUnsafeContent(t *testing.T) {
	t.Parallel()
	body := newPage().body
	for _, bad := range []string{
		`innerHTML`, `outerHTML`, `insertAdjacentHTML`, `document\.write`, `\beval\(`, `new Function`, `document\.cookie`,
		`<[a-z]+[^>]*\son[a-z]+=`, `<[a-z]+[^>]*\sstyle=`, `<script[^>]+src`, `<link[^>]+stylesheet`, `@import`, `url\(`, `setAttribute\('style'`,
	} {
		m := regexp.MustCompile(bad).Find(body)
		assert.True(t, m == nil, "the page has %q", m)
	}
	for _, m := range regexp.MustCompile(`https?://[^\s'"<>)]+`).FindAll(body, -1) {
		if !bytes.HasPrefix(m, []byte("http://www.w3.org/2000/svg")) { // a name, not an address
			t.Errorf("the page names %s", m)
		}
	}
}
