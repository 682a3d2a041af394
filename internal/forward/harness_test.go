package forward_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sirupsen/logrus"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pdmesh/pdmesh/internal/connector"
	"github.com/pdmesh/pdmesh/internal/engine/lmcache"
	"github.com/pdmesh/pdmesh/internal/forward"
	"github.com/pdmesh/pdmesh/internal/forward/flow"
	"github.com/pdmesh/pdmesh/internal/forward/leg"
	"github.com/pdmesh/pdmesh/internal/health"
	"github.com/pdmesh/pdmesh/internal/httpapi"
	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/internal/openai"
	"github.com/pdmesh/pdmesh/internal/sched"
	"github.com/pdmesh/pdmesh/internal/sched/policy"
	"github.com/pdmesh/pdmesh/internal/transport/upstream"
	"github.com/pdmesh/pdmesh/sim/fakevllm"
	"github.com/pdmesh/pdmesh/sim/fleet"
	"github.com/pdmesh/pdmesh/sim/testkit"
	"github.com/pdmesh/pdmesh/sim/testkit/leak"
)

func TestMain(m *testing.M) { leak.Main(m) }

const model = "m"

// waitLimit bounds waits for events that take milliseconds on a fast machine. No test asserts this duration.
const waitLimit = 90 * time.Second

// rig is the data path over real engines on real TCP, with a membership set by hand.
type rig struct {
	t       *testing.T
	P, D    []*fakevllm.Server
	URL     string
	tracker *health.Tracker
	handler *forward.Handler
	sched   *sched.Scheduler
	up      upstream.Client
	rec     *recorder
	deps    httpapi.Deps // of the router
	members members
	// observing is held while a list of models is put into members.
	observing sync.Mutex
	// inbox and receiver receive the notifications of LMCache engines; nil for other engines.
	inbox    *lmcache.Inbox
	receiver *lmcache.Receiver
	// ended counts the requests whose context has ended.
	ended atomic.Int64
	stop  func()                  // ends the server
	cut   context.CancelCauseFunc // ends the running requests
}

type members struct {
	p atomic.Pointer[instance.Snapshot]
}

func (m *members) Snapshot() *instance.Snapshot { return m.p.Load() }

func (m *members) set(list ...*instance.Instance) {
	old := m.p.Load()
	rev := int64(1)
	if old != nil {
		rev = old.Revision + 1
	}
	m.p.Store(instance.NewSnapshot(rev, list))
	if old != nil {
		old.Supersede()
	}
}

// change publishes copies of all instances that f has changed.
func (m *members) change(f func(*instance.Instance)) {
	var next []*instance.Instance
	for _, old := range m.Snapshot().All() {
		c := *old
		f(&c)
		next = append(next, &c)
	}
	m.set(next...)
}

// changeAt is change for the instances at the address of an engine.
func (m *members) changeAt(s *fakevllm.Server, f func(*instance.Instance)) {
	m.change(func(in *instance.Instance) {
		if in.Address == s.Address() {
			f(in)
		}
	})
}

// remove publishes all instances but those at the address of an engine.
func (m *members) remove(s *fakevllm.Server) {
	m.set(slices.DeleteFunc(slices.Clone(m.Snapshot().All()), func(in *instance.Instance) bool { return in.Address == s.Address() })...)
}

// engines returns the engines of a role.
func (r *rig) engines(role instance.Role) []*fakevllm.Server {
	if role == instance.Prefill {
		return r.P
	}
	return r.D
}

// recorder is the Recorder of a test.
type recorder struct {
	mu      sync.Mutex
	entries []forward.Entry
	retries []string
	failed  []string // "role/class" of legs that failed
	missing int
	media   int
	spent   []leg.Class
	asked   []string
	moved   []string           // "class how" of continued streams
	stayed  []string           // why streams were not continued
	decided map[string]int     // by "decodeOnly reason"
	ended   chan forward.Entry // entries that fit into the buffer; see entry
	onRetry func()             // called once, at the first retry
	// onHanded is called once, when the first prefill of a sequential pair has answered.
	onHanded func()
}

func (r *recorder) Done(e *forward.Entry) {
	r.mu.Lock()
	r.entries = append(r.entries, *e)
	r.mu.Unlock()
	select {
	case r.ended <- *e:
	default: // the buffer is full because the test does not read it: do not block the request
	}
}

func (r *recorder) Failed(k instance.Key, class leg.Class) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.failed = append(r.failed, string(k.Role)+"/"+string(class))
}

func (r *recorder) Retried(role instance.Role, class leg.Class) {
	r.mu.Lock()
	r.retries = append(r.retries, string(role)+"/"+string(class))
	hook := r.onRetry
	r.onRetry = nil
	r.mu.Unlock()
	if hook != nil {
		hook()
	}
}

func (r *recorder) Disaggregated(decodeOnly bool, reason string, _ float64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.decided == nil {
		r.decided = map[string]int{}
	}
	r.decided[fmt.Sprint(decodeOnly, " ", reason)]++
}

func (r *recorder) TransferSpent(class leg.Class) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.spent = append(r.spent, class)
}

func (r *recorder) Handed(_ *instance.Instance, something bool) {
	r.mu.Lock()
	if !something {
		r.missing++
	}
	hook := r.onHanded
	r.onHanded = nil
	r.mu.Unlock()
	if hook != nil {
		hook()
	}
}

func (r *recorder) Media() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.media++
}

func (r *recorder) Asked(outcome string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.asked = append(r.asked, outcome)
}

// askOutcomes returns the outcomes of invalid requests since the last call.
func (r *recorder) askOutcomes() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	all := strings.Join(r.asked, " ")
	r.asked = nil
	return all
}

func (r *recorder) Continued(class leg.Class, how string, _ time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.moved = append(r.moved, string(class)+" "+how)
}

func (r *recorder) NotContinued(reason string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.stayed = append(r.stayed, reason)
}

func (r *recorder) retried() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return strings.Join(r.retries, " ")
}

// entry waits for the next request to end.
func (r *rig) entry() forward.Entry {
	r.t.Helper()
	select {
	case e := <-r.rec.ended:
		return e
	case <-time.After(waitLimit):
		r.t.Fatal("no request ended")
	}
	return forward.Entry{}
}

type prober struct{}

func (prober) Alive(ctx context.Context, in *instance.Instance) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+in.Address+"/health", nil)
	if err != nil {
		return err
	}
	req.Close = true
	resp, err := http.DefaultTransport.RoundTrip(req)
	if err != nil {
		return err
	}
	_ = resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return errors.New(resp.Status)
	}
	return nil
}

func quiet() *logrus.Logger {
	l := logrus.New()
	l.SetOutput(io.Discard)
	return l
}

func instanceAt(role instance.Role, address string, mode fakevllm.Mode) *instance.Instance {
	return &instance.Instance{
		Key: instance.Key{Role: role, Address: address}, Verified: true,
		Record: instance.Record{Models: []string{model}, State: instance.Ready, Connector: string(mode), ID: address + "#1"},
	}
}

// pairKey is sched.Options.PairKey.
func pairKey(i *instance.Instance) (k connector.PairKey) {
	if d, err := connector.New(i.Record.Connector); err == nil {
		k = connector.PairKeyOf(d, i)
	}
	k.Connector = i.Record.Connector
	return k
}

// instanceOf is instanceAt for an engine, with the ports that its dialect needs.
func instanceOf(role instance.Role, s *fakevllm.Server, mode fakevllm.Mode) *instance.Instance {
	is := instanceAt(role, s.Address(), mode)
	switch {
	case mode == fakevllm.P2P:
		is.Record.Ports = map[string][]int{instance.PortP2P: {s.SideChannel()}}
	case mode == fakevllm.Mooncake && role == instance.Prefill:
		is.Record.Ports = map[string][]int{instance.PortBootstrap: {s.Bootstrap()}}
		is.Record.EngineIDs = map[string]string{"0": s.EngineID()}
	case mode == fakevllm.MoRIIORead, mode == fakevllm.MoRIIOWrite:
		is.Record.ZMQAddress, is.Record.TPSize = s.ZMQAddress(), 1
	case mode == fakevllm.LMCache && role == instance.Decode:
		is.Record.Ports = lmcachePorts(s)
	}
	return is
}

// handlerEngine starts an engine whose POST requests a handler answers, once their bodies have arrived.
func handlerEngine(t *testing.T, role instance.Role, answer http.HandlerFunc) *instance.Instance {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodPost {
			return // a probe
		}
		if body, err := io.ReadAll(r.Body); err == nil {
			r.Body = io.NopCloser(bytes.NewReader(body))
			answer(w, r)
		}
	}))
	t.Cleanup(s.Close)
	return instanceAt(role, s.Listener.Addr().String(), fakevllm.Plain)
}

// start builds a rig of prefills and decodes engines. tune may change the
// handler's options.
func start(t *testing.T, mode fakevllm.Mode, prefills, decodes int, tune func(*forward.Options)) *rig {
	t.Helper()
	return startHealth(t, mode, prefills, decodes, tune, func(*health.Options) {})
}

// startHealth is start with other options of health, too.
func startHealth(t *testing.T, mode fakevllm.Mode, prefills, decodes int, tune func(*forward.Options), opinion func(*health.Options)) *rig {
	t.Helper()
	return startScripted(t, mode, prefills, decodes, nil, tune, opinion)
}

// startScripted is startHealth with engines that return these answers.
func startScripted(t *testing.T, mode fakevllm.Mode, prefills, decodes int, turns []fakevllm.Turn, tune func(*forward.Options), opinion func(*health.Options)) *rig {
	t.Helper()
	return startTuned(t, mode, prefills, decodes, tuning{
		forward: tune, health: opinion, engine: func(o *fakevllm.Options) { o.Turns = turns },
	})
}

// tuning changes the options of a rig's parts; nil leaves them.
type tuning struct {
	forward func(*forward.Options)
	health  func(*health.Options)
	engine  func(*fakevllm.Options)
	sched   func(*sched.Options)
}

// noProbes keeps the proxy from probing the instance of a slow leg. On a slow machine the probe
// may last longer than a limit of the test, and then it ends the leg.
func noProbes(o *sched.Options) { o.SilentAfter = waitLimit }

// prefixPolicy has a rig pick its prefill instances by the prefix of the prompt.
func prefixPolicy(t *testing.T) func(*sched.Options) {
	t.Helper()
	prefix, err := policy.Find("prefix")
	require.NoError(t, err)
	return func(o *sched.Options) { o.Policies = map[instance.Role]policy.Kind{instance.Prefill: prefix} }
}

// startTuned is start with other options of any part.
func startTuned(t *testing.T, mode fakevllm.Mode, prefills, decodes int, tune tuning) *rig {
	t.Helper()
	r := &rig{t: t, rec: &recorder{ended: make(chan forward.Entry, 1024)}}
	shared := fakevllm.NewShared()
	var list []*instance.Instance
	engine := func(role fakevllm.Role) *fakevllm.Server {
		// Ports that no other process can take while the engine is down.
		ports, err := fleet.FreePorts(2 + lmcacheRanks)
		require.NoError(t, err)
		at := func(i int) string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(ports[i])) }
		o := fakevllm.Options{
			Addr: at(0),
			Role: role, Mode: mode, Models: []string{model}, Shared: shared, StrictPrefill: true, PromptTokensDetails: true,
			ScaleOut: true, StoreResponses: true, Transcription: true, TokenizerInfo: true,
			KVLease: 10 * time.Minute, // the default ends while a busy machine is stalled
		}
		switch mode { // addresses that the record has
		case fakevllm.P2P, fakevllm.MoRIIORead, fakevllm.MoRIIOWrite:
			o.SideChannelAddr = at(1)
		case fakevllm.Mooncake:
			o.BootstrapAddr = at(1)
		case fakevllm.LMCache:
			o.Ranks, o.NotifyAddr = lmcacheRanks, r.listenForNotices()
			for rank := range lmcacheRanks {
				o.AllocAddrs = append(o.AllocAddrs, at(2+rank))
			}
		}
		if tune.engine != nil {
			tune.engine(&o)
		}
		return fakevllm.StartTest(t, o)
	}
	join := func(role instance.Role, s *fakevllm.Server) {
		one := instanceOf(role, s, mode)
		if n := len(s.Ranks()); n > 1 {
			one.Record.DPSize = n
		}
		list = append(list, one)
	}
	for range prefills {
		s := engine(fakevllm.RolePrefill)
		r.P = append(r.P, s)
		join(instance.Prefill, s)
	}
	for range decodes {
		s := engine(fakevllm.RoleDecode)
		r.D = append(r.D, s)
		join(instance.Decode, s)
	}
	// The snapshot is sorted by address, and its first instance is picked first.
	byAddress := func(a, b *fakevllm.Server) int { return strings.Compare(a.Address(), b.Address()) }
	slices.SortFunc(r.P, byAddress)
	slices.SortFunc(r.D, byAddress)
	r.members.set(list...)
	log := quiet()
	ho := health.Options{
		Source: &r.members, Prober: prober{}, Log: log, SlowStart: -1,
		// A leg that takes 50 ms causes a probe of its instance. On a slow machine, the instance must not be
		// ejected as silent.
		ProbeTimeout: 20 * time.Second, SilenceLimit: 20 * time.Second,
		ProbeInterval: 20 * time.Millisecond, MaxProbeInterval: 50 * time.Millisecond, Ejection: 50 * time.Millisecond,
		Received: func(k instance.Key) uint64 { return r.sched.Loads.Progress(k) },
		OnEject:  func(k instance.Key, dead bool, why string) { r.sched.Legs.Abandon(k, dead, why) },
	}
	if tune.health != nil {
		tune.health(&ho)
	}
	r.tracker = health.New(ho)
	so := sched.Options{
		Source: &r.members, Health: r.tracker, Silent: r.tracker.Suspect, SilentAfter: 50 * time.Millisecond,
		PairKey: pairKey,
	}
	if tune.sched != nil {
		tune.sched(&so)
	}
	r.sched = sched.New(so)
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { r.sched.Legs.Run(ctx) })
	r.up = client(t)
	o := forward.Options{
		Config: flow.Config{
			Picker: r.sched, Health: r.tracker, Log: log, Fallback: true,
			// Far longer than any step of these tests, but short enough that a test which hangs reports it.
			Prefill: time.Minute, FirstByte: time.Minute, Idle: time.Minute, NonStream: time.Minute, Notified: time.Minute,
			Notifications: &lmcache.Waiter{Own: r.inbox, HTTP: http.DefaultClient},
		},
		Settings: leg.Settings{Upstream: r.up}, Recorder: r.rec, Trace: func(*http.Request) bool { return true },
	}
	if tune.forward != nil {
		tune.forward(&o)
	}
	h, err := forward.New(o)
	require.NoError(t, err)
	r.handler = h
	deps := httpapi.Deps{
		Data: httpapi.DataHandlers{
			Generate: h.Completion, Passthrough: h.Passthrough, Form: h.Form, PassthroughGet: h.PassthroughGet, Stored: h.Stored, Requests: h.Requests,
			FanOut: h.FanOut, Models: h.Models,
		},
		Log: log,
	}
	r.deps = deps
	r.URL = r.serve(deps)
	t.Cleanup(func() {
		http.DefaultTransport.(*http.Transport).CloseIdleConnections()
		r.stop()
		cancel()
		running.Wait()
		r.tracker.Close()
		r.up.Close()
	})
	return r
}

// serve starts the proxy's HTTP server.
func (r *rig) serve(deps httpapi.Deps) (url string) {
	r.t.Helper()
	router := httpapi.NewRouter(deps, true)
	requests, cut := context.WithCancelCause(context.Background())
	r.cut = cut
	s := &http.Server{ReadHeaderTimeout: time.Minute, BaseContext: func(net.Listener) context.Context { return requests }, Handler: http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		context.AfterFunc(q.Context(), func() { r.ended.Add(1) })
		router.ServeHTTP(w, q)
	})}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(r.t, err)
	ended := make(chan error, 1)
	go func() { ended <- s.Serve(ln) }()
	r.stop = func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		assert.NoError(r.t, s.Shutdown(ctx), "the server did not stop")
		if err := <-ended; !errors.Is(err, http.ErrServerClosed) {
			r.t.Errorf("the server ended with %v", err)
		}
	}
	return "http://" + ln.Addr().String()
}

// client is the upstream client under test, which PD_TEST_UPSTREAM selects.
func client(t *testing.T) upstream.Client {
	t.Helper()
	kind := os.Getenv("PD_TEST_UPSTREAM")
	if kind == "" {
		kind = upstream.KindOwn
	}
	// A slow connection on a busy machine must not count as refused.
	return upstream.New(kind, upstream.Options{ConnectTimeout: waitLimit})
}

// hookedClient is an upstream client that calls functions around each read of an answer of a role; they may be
// nil.
type hookedClient struct {
	upstream.Client
	role   instance.Role
	before func()
	after  func(leg context.Context, read []byte, err error)
}

func (c *hookedClient) Do(ctx context.Context, r *upstream.Request) (*upstream.Response, error) {
	resp, err := c.Client.Do(ctx, r)
	if err == nil && r.Instance.Role == c.role {
		resp.Body = &hookedBody{resp.Body, c, ctx}
	}
	return resp, err
}

type hookedBody struct {
	io.ReadCloser
	c   *hookedClient
	leg context.Context //nolint:containedctx // that of the request it is the body of
}

func (b *hookedBody) Read(p []byte) (int, error) {
	if b.c.before != nil {
		b.c.before()
	}
	n, err := b.ReadCloser.Read(p)
	if b.c.after != nil {
		b.c.after(b.leg, p[:n], err)
	}
	return n, err
}

// answer is the response that a client received.
type answer struct {
	status int
	header http.Header
	body   []byte
	// err is the error of reading the body, nil for a clean end.
	err error
}

// async sends a request and returns the channel of its answer.
func async(send func() answer) chan answer {
	got := make(chan answer, 1)
	go func() { got <- send() }()
	return got
}

// check reports whether an answer has a status and its body contains all of the parts.
func (a answer) check(t *testing.T, status int, parts ...string) bool {
	t.Helper()
	return assert.Equal(t, status, a.status, "%v: %s", a.err, a.body) && testkit.Contains(t, string(a.body), parts...)
}

// require is check that ends the test.
func (a answer) require(t *testing.T, status int, parts ...string) {
	t.Helper()
	if !a.check(t, status, parts...) {
		t.FailNow()
	}
}

func (r *rig) post(path, body string, header ...string) answer {
	r.t.Helper()
	return r.postCtx(r.t.Context(), path, body, header...)
}

func (r *rig) postCtx(ctx context.Context, path, body string, header ...string) answer {
	r.t.Helper()
	return r.send(ctx, path, strings.NewReader(body), header...)
}

// postUnannounced sends a body without a Content-Length.
func (r *rig) postUnannounced(path, body string) answer {
	r.t.Helper()
	return r.send(r.t.Context(), path, io.MultiReader(strings.NewReader(body)))
}

func (r *rig) send(ctx context.Context, path string, body io.Reader, header ...string) answer {
	r.t.Helper()
	return do(http.DefaultClient, newRequest(ctx, r.t, http.MethodPost, r.URL+path, body, header...))
}

func (r *rig) get(path string) answer {
	r.t.Helper()
	return do(http.DefaultClient, newRequest(r.t.Context(), r.t, http.MethodGet, r.URL+path, nil))
}

// newRequest returns a request with a JSON body or without one; header has names and values.
func newRequest(ctx context.Context, tb testing.TB, method, url string, body io.Reader, header ...string) *http.Request {
	tb.Helper()
	req, err := http.NewRequestWithContext(ctx, method, url, body)
	require.NoError(tb, err)
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	for i := 0; i+1 < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	return req
}

// do sends a request and reads the answer.
func do(c *http.Client, req *http.Request) answer {
	resp, err := c.Do(req)
	if err != nil {
		return answer{err: err}
	}
	defer func() { _ = resp.Body.Close() }()
	return readRest(resp, resp.Body)
}

// events splits a stream into the payloads of its events.
func (a answer) events() []string {
	var out []string
	s := bufio.NewScanner(bytes.NewReader(a.body))
	s.Buffer(nil, 8<<20)
	for s.Scan() {
		if data, ok := strings.CutPrefix(s.Text(), "data: "); ok {
			out = append(out, data)
		}
	}
	return out
}

// text joins the text of a stream or of a whole answer.
func (a answer) text(t *testing.T) string {
	t.Helper()
	type choice struct {
		Text    string
		Delta   struct{ Content string }
		Message struct{ Content string }
	}
	var b strings.Builder
	add := func(raw string) {
		var v struct{ Choices []choice }
		require.NoError(t, json.Unmarshal([]byte(raw), &v), "%q", raw)
		for _, c := range v.Choices {
			b.WriteString(c.Text + c.Delta.Content + c.Message.Content)
		}
	}
	if !strings.HasPrefix(a.header.Get("Content-Type"), "text/event-stream") {
		add(string(a.body))
		return b.String()
	}
	for _, e := range a.events() {
		if e != "[DONE]" {
			add(e)
		}
	}
	return b.String()
}

// checkComplete checks that a stream or answer is complete and has the text of the model.
func (r *rig) checkComplete(a answer, chat bool, body string) {
	r.t.Helper()
	path := completionsPath
	if chat {
		path = chatPath
	}
	want, err := fakevllm.ExpectedAt(path, []byte(body), 0)
	require.NoError(r.t, err)
	require.True(r.t, a.err == nil && a.status == http.StatusOK, "status %d, err %v: %s", a.status, a.err, a.body)
	require.Equal(r.t, want[0].Text, a.text(r.t), "text; retried: %q", r.rec.retried())
	if strings.HasPrefix(a.header.Get("Content-Type"), "text/event-stream") {
		require.Equal(r.t, "no", a.header.Get("X-Accel-Buffering"), "nginx would hold events back")
		events := a.events()
		n := strings.Count(string(a.body), "[DONE]")
		require.True(r.t, n == 1 && events[len(events)-1] == "[DONE]", "%d [DONE] in %q", n, a.body)
		if n := strings.Count(string(a.body), `"role":"assistant"`); chat && n != 1 {
			r.t.Fatalf("%d role chunks: an attempt leaked into the stream: %s", n, a.body)
		}
	}
}

// noneTroubled waits until health suspects no instance. On a busy machine, an instance with a slow leg is
// suspected until it has answered a probe.
func (r *rig) noneTroubled() {
	r.t.Helper()
	eventually(r.t, "no instance is in trouble", func() bool { return len(r.tracker.Troubled()) == 0 })
}

// checkEngines fails if an engine received a request that would harm it, and waits until no leg is in flight.
func (r *rig) checkEngines() {
	r.t.Helper()
	for _, s := range append(append([]*fakevllm.Server{}, r.P...), r.D...) {
		assert.Len(r.t, s.Violations(), 0, s.Address())
		assert.Len(r.t, s.BadParams(), 0, "%s: bad KV transfers", s.Address())
		c := s.Counters()
		assert.True(r.t, c.Crashes <= 0, "%s would have crashed %d times", s.Address(), c.Crashes)
	}
	// An answer of known length is complete for the client before the handler ends.
	eventually(r.t, "nothing is in flight", func() bool {
		busy := int64(0)
		r.sched.Loads.Each(func(_ instance.Key, n int64) { busy += n })
		return busy == 0
	})
}

func chatBody(stream bool, more string) string {
	s := "false"
	if stream {
		s = "true"
	}
	return `{"model":"m","messages":[{"role":"user","content":"tell me of the sea"}],"max_tokens":12,"stream":` + s + more + `}`
}

// eventually polls a condition that depends on the network.
func eventually(t *testing.T, what string, cond func() bool) {
	t.Helper()
	testkit.Eventually(t, waitLimit, func() error {
		if !cond() {
			return errors.New("never: " + what)
		}
		return nil
	})
}

func total(list []*fakevllm.Server, f func(fakevllm.Counters) int64) int64 {
	var n int64
	for _, s := range list {
		n += f(s.Counters())
	}
	return n
}

// posted returns the client requests that an engine received, including faulty ones. It omits probes, which
// an engine gets when a leg takes 50 ms.
func posted(s *fakevllm.Server) []fakevllm.Request {
	return slices.DeleteFunc(s.Requests(), func(q fakevllm.Request) bool { return q.Method != http.MethodPost })
}

// legs returns the number of requests to generate that arrived.
func legs(list []*fakevllm.Server) int64 {
	var n int64
	for _, s := range list {
		for _, q := range posted(s) {
			if openai.KindOf(q.Path) != openai.Other {
				n++
			}
		}
	}
	return n
}

func aborted(c fakevllm.Counters) int64 { return c.Aborted }
