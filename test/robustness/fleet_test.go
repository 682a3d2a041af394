package robustness

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	"golang.org/x/sync/errgroup"

	"github.com/pdmesh/pdmesh/sim/fleet"
	"github.com/pdmesh/pdmesh/sim/testkit"
	"github.com/pdmesh/pdmesh/sim/testkit/etcdtest"
)

const (
	adminKey = "robustness-admin-key"
	audit    = 10 * time.Second // --audit-interval of the proxies
	ttl      = 5 * time.Second  // of the agents' leases
	kvLease  = 10 * time.Second // of the KV caches of prefill engines
	quota    = 16 << 20         // bytes; of etcd's data
	soon     = time.Minute      // generous limit for events that should happen; no test asserts it
)

// rig is the fleet of a run.
type rig struct {
	t       *testing.T
	plan    Plan
	f       *fleet.Fleet
	http    *http.Client
	etcd    *clientv3.Client // of the suite, to the members themselves
	members []*member
	engines []*engine
	proxies []*proxy
	load    *load
	links   map[string]*testkit.Link // links of clients and of KV transfers, by name
	// old returns the path of the older version's program for a process, or "" for the present
	// version: see Mixed.
	old func(program, process string) string

	seen atomic.Int64 // revision that the watch of the suite has reached

	mu   sync.Mutex // guards the fields below
	h    *History
	busy map[string]bool // names of engines that have a fault now
	// epoch is the number of wipes of etcd so far.
	epoch int
}

// member is an etcd member. Clients reach it through a link for each proxy and each agent.
type member struct {
	name, client, peer string
	peerLink           *testkit.Link // through which the other members reach it
	links              []*testkit.Link
	proc               *fleet.Process
}

// engine is an engine with its agent.
type engine struct {
	EngineSpec
	own, side, boot int           // ports; side and boot are those for KV transfers
	starts          int           // number of engine ids so far
	link            *testkit.Link // through which proxies reach it
	etcd            []string      // for the agent
	links           []*testkit.Link
	journal         string
	proc, agent     *fleet.Process
}

// proxy is a proxy with separate links to the members.
type proxy struct {
	name, dir string
	port      int
	etcd      []string
	links     []*testkit.Link
	proc      *fleet.Process
	starts    int
	before    Usage
}

func (e *engine) address() string { return e.link.Address() }
func (e *engine) direct() string  { return "http://127.0.0.1:" + strconv.Itoa(e.own) }
func (p *proxy) url() string      { return "http://127.0.0.1:" + strconv.Itoa(p.port) }

// transferHost is the host by which other engines reach the side channel of an engine, through a link.
const transferHost = "127.0.0.2"

// record changes the history.
func (r *rig) record(change func(h *History)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	change(r.h)
}

// take reports whether no other fault has one of the engines, and takes them until free is called.
func (r *rig) take(engines ...string) (free func(), ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, name := range engines {
		if r.busy[name] {
			return nil, false
		}
	}
	set := func(to bool) {
		for _, name := range engines {
			r.busy[name] = to
		}
	}
	set(true)
	return func() { r.record(func(*History) { set(false) }) }, true
}

// build starts the fleet of a plan and waits until every proxy uses every instance.
func build(t *testing.T, plan Plan, old func(program, process string) string) *rig {
	t.Helper()
	f, err := fleet.New(fleet.Options{BinDir: bin, Dir: t.TempDir(), ReadyTimeout: soon})
	require.NoError(t, err)
	t.Cleanup(func() {
		assert.NoError(t, f.Abandon(), "end of the fleet")
	})
	r := &rig{
		t: t, plan: plan, f: f, old: old,
		http: &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: 20 * time.Second},
		busy: map[string]bool{}, links: map[string]*testkit.Link{},
		h: &History{Seed: plan.Seed, Start: time.Now(), Audit: audit, Models: map[string][]Serves{}, Garbage: map[string]bool{}},
	}
	if plan.Queue && old == nil {
		r.h.QueueLength = queueLength
	}
	r.h.Continue = plan.Continue && old == nil
	var endpoints []string
	for _, name := range etcdNames {
		m := &member{name: name, client: testkit.FreePort(t), peer: testkit.FreePort(t)}
		m.peerLink = testkit.StartLink(t, m.peer)
		r.members, endpoints = append(r.members, m), append(endpoints, m.client)
	}
	r.must(r.startEtcd(t.Context()))
	r.etcd = etcdtest.Client(t, endpoints...)
	r.watch()
	for i := range plan.Proxies {
		p := &proxy{name: fmt.Sprintf("proxy-%d", i+1), port: port(testkit.FreePort(t))}
		p.dir = filepath.Join(r.f.Dir(), p.name)
		p.etcd, p.links = r.endpoints()
		r.proxies = append(r.proxies, p)
		r.links[p.name+ClientLink] = testkit.StartLink(t, "127.0.0.1:"+strconv.Itoa(p.port))
		r.must(r.startProxy(t.Context(), p))
	}
	var group errgroup.Group
	for _, spec := range plan.Engines {
		e := &engine{EngineSpec: spec, own: port(testkit.FreePort(t)), side: port(testkit.FreePort(t)), boot: port(testkit.FreePort(t)), journal: filepath.Join(r.f.Dir(), spec.Name+".journal")}
		e.link = testkit.StartLink(t, net.JoinHostPort("127.0.0.1", strconv.Itoa(e.own)))
		r.links[e.Name+TransferLink] = testkit.StartLinkAt(t, net.JoinHostPort(transferHost, strconv.Itoa(e.side)), "127.0.0.1:"+strconv.Itoa(e.side))
		e.etcd, e.links = r.endpoints()
		r.engines = append(r.engines, e)
		r.h.Engines = append(r.h.Engines, Engine{Name: e.Name, Role: e.Role, Address: e.address()})
		group.Go(func() error {
			if err := r.startEngine(t.Context(), e, e.Models...); err != nil || e.Name == "spare" {
				return err
			}
			return r.startAgent(t.Context(), e)
		})
	}
	r.must(group.Wait())
	testkit.Eventually(t, soon, func() error { return r.allUsed(t.Context()) })
	for _, p := range r.proxies {
		r.must(r.usage(p, &p.before))
	}
	return r
}

func (r *rig) must(err error) {
	r.t.Helper()
	require.NoError(r.t, err)
}

// fail fails the test from any goroutine for an error that is no verdict on the product.
func (r *rig) fail(err error) {
	if err != nil && r.t.Context().Err() == nil {
		r.t.Errorf("seed %d at %s: %v", r.plan.Seed, r.h.clock(time.Now()), err)
	}
}

func port(address string) int {
	_, text, _ := net.SplitHostPort(address)
	n, _ := strconv.Atoi(text) // the port of a listener that was just closed
	return n
}

// endpoints returns new links to the members.
func (r *rig) endpoints() (addresses []string, links []*testkit.Link) {
	for _, m := range r.members {
		l := testkit.StartLink(r.t, m.client)
		m.links = append(m.links, l)
		addresses, links = append(addresses, l.Address()), append(links, l)
	}
	return addresses, links
}

// program returns the program for a process, of the present or of the older version.
func (r *rig) program(program, process string) string {
	if r.old != nil {
		if path := r.old(program, process); path != "" {
			return path
		}
	}
	return program
}

// startEtcd starts all members and waits until they serve.
func (r *rig) startEtcd(ctx context.Context) error {
	var group errgroup.Group
	for _, m := range r.members {
		group.Go(func() error { return r.startMember(ctx, m) })
	}
	return group.Wait()
}

func (r *rig) startMember(ctx context.Context, m *member) (err error) {
	var cluster []string
	for _, o := range r.members {
		cluster = append(cluster, o.name+"=http://"+o.peerLink.Address())
	}
	client := "http://" + m.client
	m.proc, err = r.f.Start(ctx, fleet.Spec{
		Name: m.name, Program: "etcd",
		Args: []string{
			"--name=" + m.name, "--data-dir=" + filepath.Join(r.f.Dir(), m.name), "--log-level=warn", "--unsafe-no-fsync",
			"--listen-client-urls=" + client, "--advertise-client-urls=" + client,
			"--listen-peer-urls=http://" + m.peer, "--initial-advertise-peer-urls=http://" + m.peerLink.Address(),
			"--initial-cluster=" + strings.Join(cluster, ","), "--quota-backend-bytes=" + strconv.Itoa(quota),
		},
		Ready: func(ctx context.Context) error { return r.get(ctx, client+"/health", nil) },
	})
	return err
}

func (r *rig) startProxy(ctx context.Context, p *proxy) (err error) {
	p.starts++
	queue := []string{"--queue", "observe"}
	if r.h.QueueLength > 0 {
		queue = []string{"--queue", "on", "--queue-length", strconv.Itoa(r.h.QueueLength)}
	} else if r.old != nil {
		queue = nil
	}
	if r.h.Continue {
		queue = append(queue, "--continue-streams", "3")
	}
	p.proc, err = r.f.Start(ctx, fleet.Spec{
		Name: p.name, Program: r.program("proxy", p.name), Env: []string{"ADMIN_API_KEY=" + adminKey},
		Args: append(queue,
			"--host", "127.0.0.1", "--port", strconv.Itoa(p.port), "--state-dir", p.dir, "--etcd-endpoints", strings.Join(p.etcd, ","),
			"--connector", "nixl", "--kv-lease-budget", (kvLease * 2 / 3).String(), "--waiting-retry-interval", "500ms", "--access-log=off", "--trace-headers", "--audit-interval", audit.String(),
			// An engine may lose one request and serve all others: these limits end the lost request.
			"--prefill-timeout", "10s", "--decode-first-byte-timeout", "10s", "--non-stream-timeout", "20s", "--busy-timeout", "20s", "--shutdown-timeout", "3s",
		),
		Ready: func(ctx context.Context) error {
			var ready struct{ Started bool }
			if err := r.get(ctx, p.url()+"/readyz", &ready); err != nil || !ready.Started {
				return fmt.Errorf("not started: %w", err)
			}
			return nil
		},
	})
	return err
}

// startEngine starts an engine with a new engine id.
func (r *rig) startEngine(ctx context.Context, e *engine, models ...string) error {
	e.starts++
	return r.startAgain(ctx, e, models...)
}

// startAgain starts an engine with the engine id of its last start.
func (r *rig) startAgain(ctx context.Context, e *engine, models ...string) (err error) {
	args := []string{
		"--host", "127.0.0.1", "--port", strconv.Itoa(e.own), "--role", e.Role, "--mode", e.Connector, "--model", strings.Join(models, ","),
		"--ttft", "2ms", "--itl", "2ms", "--faults", "--enable-scale-out", "--strict", "--transfer-timeout", "5s", "--kv-lease", kvLease.String(),
		"--side-channel-host", transferHost, "--side-channel-port", strconv.Itoa(e.side), "--engine-id", fmt.Sprintf("%s-%d", e.Name, e.starts),
		"--bootstrap-port", strconv.Itoa(e.boot), "--journal", e.journal, "--log-level", "error",
	}
	if r.plan.Adapters {
		args = append(args, "--runtime-lora")
	}
	if r.h.QueueLength > 0 {
		// Decode waits for prefill, whose queue may be longer than the timeout above.
		args = append(args, "--transfer-timeout", "15s", "--prefill-rate", strconv.Itoa(engineRate), "--max-num-batched-tokens", "1") // an engine in both roles decodes between the tokens of prompts
	}
	e.proc, err = r.f.Start(ctx, fleet.Spec{
		Name: e.Name, Program: "fakevllm", Args: args,
		Ready: func(ctx context.Context) error { return r.get(ctx, e.direct()+"/health", nil) },
	})
	if err == nil {
		r.record(func(h *History) { h.Models[e.Name] = append(h.Models[e.Name], Serves{time.Now(), models}) })
	}
	if err == nil && r.plan.Adapters && slices.Contains(models, ModelA) {
		err = r.adapter(ctx, e, "load")
	}
	return err
}

// adapter loads or unloads Adapter on an engine that serves its usual models.
func (r *rig) adapter(ctx context.Context, e *engine, verb string) error {
	serves := Serves{time.Now(), slices.Clone(e.Models)}
	err := r.send(ctx, http.MethodPost, e.direct()+"/v1/"+verb+"_lora_adapter", fmt.Sprintf(`{"lora_name":%q,"lora_path":%q}`, Adapter, r.f.Dir()), nil)
	if verb == "load" {
		serves = Serves{time.Now(), append(serves.Models, Adapter)}
	}
	if err == nil {
		r.record(func(h *History) { h.Models[e.Name] = append(h.Models[e.Name], serves) })
	}
	return err
}

func (r *rig) startAgent(ctx context.Context, e *engine) (err error) {
	args := []string{
		"--role", e.Role, "--address", e.address(), "--engine", e.direct(), "--connector", e.Connector,
		"--etcd-endpoints", strings.Join(e.etcd, ","), "--ttl", ttl.String(), "--probe-interval", "200ms", "--kv-lease", "0s", "--drain-timeout", "10s",
	}
	if e.Connector == "mooncake" && e.Role != "decode" {
		args = append(args, "--bootstrap-port", strconv.Itoa(e.boot))
	}
	e.agent, err = r.f.Start(ctx, fleet.Spec{Name: e.Name + "-agent", Program: r.program("agent", e.Name), Args: args})
	return err
}

// get reads a page and decodes it into into unless that is nil. Status 503 is an error only if into is nil.
func (r *rig) get(ctx context.Context, url string, into any) error {
	return r.send(ctx, http.MethodGet, url, "", into)
}

// send sends a request with the admin key, and decodes the answer.
func (r *rig) send(ctx context.Context, method, url, body string, into any) error {
	req, err := http.NewRequestWithContext(ctx, method, url, strings.NewReader(body))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("X-Api-Key", adminKey)
	res, err := r.http.Do(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	raw, err := io.ReadAll(res.Body)
	switch {
	case err != nil:
		return err
	case res.StatusCode/100 != 2 && (into == nil || res.StatusCode != http.StatusServiceUnavailable):
		return &statusError{res.StatusCode, fmt.Sprintf("%s %s: %d: %.300s", method, url, res.StatusCode, raw)}
	case into == nil:
		return nil
	}
	if text, ok := into.(*string); ok {
		*text = string(raw)
		return nil
	}
	return json.Unmarshal(raw, into)
}

type statusError struct {
	status int
	text   string
}

func (e *statusError) Error() string { return e.text }

// poll reads the membership of a proxy.
func (r *rig) poll(ctx context.Context, p *proxy) (Poll, error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	var s fleet.Status
	if err := r.get(ctx, p.url()+"/status", &s); err != nil {
		return Poll{}, err
	}
	out := Poll{At: time.Now(), Proxy: p.name, Revision: s.Revision}
	if r.h.QueueLength > 0 {
		r.record(func(h *History) {
			for _, q := range s.Queues {
				n := 0
				for _, of := range q.Waiting {
					n += of
				}
				h.Queues = append(h.Queues, QueuePoll{out.At, p.name, q.Model, n})
			}
		})
	}
	for _, in := range s.Instances {
		out.Instances = append(out.Instances, Seen{
			Key: string(in.Role) + "/" + in.Address, View: string(in.View), Intent: string(in.Intent), Revision: in.Revision, Pending: in.View == "pending",
		})
	}
	return out, nil
}

// stored reads the instances' keys and the intents from etcd.
func (r *rig) stored(ctx context.Context) (keys map[string]int64, intents map[string]string, err error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	resp, err := r.etcd.Get(ctx, "/pd/", clientv3.WithPrefix())
	if err != nil {
		return nil, nil, err
	}
	keys, intents = map[string]int64{}, map[string]string{}
	for _, kv := range resp.Kvs {
		applyChange(Change{Revision: kv.ModRevision, Key: string(kv.Key), Value: string(kv.Value)}, keys, intents)
	}
	return keys, intents, nil
}

// converged returns nil if a proxy's snapshot equals etcd, and the proxy can use every instance except the
// spare. If ejected is true, ejected instances count as used.
func (r *rig) converged(ctx context.Context, p *proxy, ejected bool) error {
	s, err := r.poll(ctx, p)
	if err != nil {
		return err
	}
	keys, intents, err := r.stored(ctx)
	if err != nil {
		return err
	}
	if d := differences(s, keys, intents, nil, nil); len(d) > 0 {
		return errors.New(strings.Join(d, "; "))
	}
	for _, e := range r.engines {
		for _, role := range roles(e.Role) {
			k := role + "/" + e.address()
			i := slices.IndexFunc(s.Instances, func(s Seen) bool { return s.Key == k })
			switch {
			case e.Name == "spare" && i >= 0:
				return fmt.Errorf("the spare %s is there: %+v", k, s.Instances[i])
			case e.Name == "spare":
			case i >= 0 && ejected && s.Instances[i].View == "ejected" && s.Instances[i].Intent == "":
			case i < 0 || s.Instances[i].View != "" || s.Instances[i].Intent != "":
				return fmt.Errorf("%s (%s) is not used: %+v", k, e.Name, s.Instances[max(i, 0):min(len(s.Instances), i+1)])
			}
		}
	}
	return nil
}

func (r *rig) allUsed(ctx context.Context) error {
	for _, p := range r.proxies {
		if err := r.converged(ctx, p, false); err != nil {
			return fmt.Errorf("%s: %w", p.name, err)
		}
	}
	return nil
}

// metrics reads a proxy's metrics, by their name with labels.
func (r *rig) metrics(p *proxy) (map[string]float64, error) {
	var text string
	if err := r.get(context.WithoutCancel(r.t.Context()), p.url()+"/metrics", &text); err != nil {
		return nil, err
	}
	out := map[string]float64{}
	for line := range strings.Lines(text) {
		name, value, ok := strings.Cut(strings.TrimSpace(line), " ")
		if strings.HasPrefix(line, "#") || !ok {
			continue
		}
		if i := strings.LastIndexByte(line, '}'); i >= 0 { // label values may have spaces
			name, value = line[:i+1], strings.TrimSpace(line[i+1:])
		}
		if v, err := strconv.ParseFloat(value, 64); err == nil {
			out[name] = v
		}
	}
	return out, nil
}

// usage reads the resource usage of a proxy.
func (r *rig) usage(p *proxy, into *Usage) error {
	m, err := r.metrics(p)
	*into = Usage{Goroutines: int(m["go_goroutines"]), Descriptors: int(m["process_open_fds"]), Heap: int64(m["go_memstats_heap_inuse_bytes"])}
	return err
}

// watch records every change below /pd/ until the test ends.
func (r *rig) watch() {
	ctx, cancel := context.WithCancel(context.WithoutCancel(r.t.Context()))
	done := make(chan struct{})
	r.t.Cleanup(func() { cancel(); <-done })
	go func() {
		defer close(done)
		for next := int64(1); ctx.Err() == nil && r.currentEpoch() == 0; {
			wctx, stop := context.WithCancel(ctx)
			for resp := range r.etcd.Watch(wctx, "/pd/", clientv3.WithPrefix(), clientv3.WithRev(next)) {
				if resp.CompactRevision != 0 {
					r.fail(fmt.Errorf("the watch of the suite missed changes: compacted at %d, wanted %d", resp.CompactRevision, next))
				}
				if resp.Err() != nil || r.currentEpoch() != 0 { // no rule needs the changes after a wipe
					break
				}
				next = resp.Header.Revision + 1
				r.seen.Store(resp.Header.Revision)
				r.record(func(h *History) {
					for _, ev := range resp.Events {
						key := string(ev.Kv.Key)
						if strings.HasPrefix(key, "/pd/load/") || strings.HasPrefix(key, "/pd/proxies/") || strings.HasPrefix(key, "/pd/audit/") {
							continue
						}
						h.Changes = append(h.Changes, Change{
							At: time.Now(), Revision: ev.Kv.ModRevision, Key: key,
							Deleted: ev.Type == clientv3.EventTypeDelete, Value: string(ev.Kv.Value),
						})
					}
				})
			}
			stop()
		}
	}()
}

func (r *rig) currentEpoch() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.epoch
}

// kill kills a process that must have run until now.
func (r *rig) kill(p *fleet.Process) error {
	r.alive(p)
	return p.Kill()
}

// alive records a process that has ended by itself.
func (r *rig) alive(p *fleet.Process) {
	select {
	case <-p.Done():
		r.record(func(h *History) {
			h.Crashes = append(h.Crashes, fmt.Sprintf("%s has ended by itself: %v; last lines of its log:\n%s", p.Name(), p.Err(), p.LogTail(20)))
		})
	default:
	}
}

// panics records panics in the handlers of proxies: a client sees only a broken answer.
func (r *rig) panics() {
	for _, p := range r.proxies {
		raw, err := os.ReadFile(filepath.Join(r.f.Dir(), "logs", p.name+".log"))
		r.fail(err)
		for line := range strings.Lines(string(raw)) {
			if strings.Contains(line, "panic(") || strings.HasPrefix(line, "panic: ") {
				r.record(func(h *History) {
					h.Crashes = append(h.Crashes, fmt.Sprintf("a handler of %s panicked: %.600s", p.name, line))
				})
			}
		}
	}
}

// signalAll sends a signal to every process.
func (r *rig) signalAll(sig syscall.Signal) error {
	var errs []error
	for _, p := range r.f.Running() {
		errs = append(errs, p.Signal(sig))
	}
	return errors.Join(errs...)
}

// readJournals adds the arrivals of all engines to the history.
func (r *rig) readJournals() {
	for _, e := range r.engines {
		raw, err := os.ReadFile(e.journal)
		if err != nil {
			r.fail(err)
			continue
		}
		arrivals, err := parseJournal(e.address(), raw)
		r.fail(err)
		r.record(func(h *History) { h.Arrivals = append(h.Arrivals, arrivals...) })
	}
}

// parseJournal reads the journal of an engine, which all its starts have appended to.
func parseJournal(address string, raw []byte) ([]Arrival, error) {
	var out []Arrival
	open := map[int64]int{}
	for line := range bytes.Lines(raw) {
		var entry struct {
			At, Seq int64
			ID      string
			End     bool
		}
		if err := json.Unmarshal(line, &entry); err != nil {
			if bytes.HasSuffix(line, []byte("\n")) {
				return nil, fmt.Errorf("journal of %s: %w: %q", address, err, line)
			}
			continue // its engine was killed while it wrote the line
		}
		at := time.Unix(0, entry.At)
		if i, ok := open[entry.Seq]; entry.End && ok {
			out[i].To = at
			delete(open, entry.Seq)
		} else if !entry.End {
			open[entry.Seq] = len(out) // a new start of the engine counts from 1 again
			out = append(out, Arrival{Span: Span{From: at}, Engine: address, ID: entry.ID})
		}
	}
	return out, nil
}
