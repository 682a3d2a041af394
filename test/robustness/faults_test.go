package robustness

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/pdmesh/pdmesh/sim/testkit"
	"github.com/pdmesh/pdmesh/sim/testkit/etcdtest"
)

// perform executes an action, holds it and undoes it. In the history, the fault lasts from before its
// beginning until every affected part works again.
func (r *rig) perform(ctx context.Context, a Action) {
	switch {
	case slices.Contains(operators, a.Kind) || slices.Contains(spareOps, a.Kind):
		r.operate(ctx, a)
		return
	case a.Kind == "restart-behind":
		r.restartBehind(ctx, a)
		return
	}
	free, ok := r.take(a.Target)
	if !ok {
		return
	}
	defer free()
	if a.Kind == "deregister" {
		r.deregister(ctx, r.engine(a.Target))
		return
	}
	target := a.Target
	if a.Kind == "unload-adapter" {
		target += ofAdapter
	}
	if a.Kind == "kill-agent" || a.Kind == "stop-agent" {
		target += "-agent"
	}
	f := Fault{Span: Span{From: time.Now()}, Kind: a.Kind, Target: target}
	undo, err := r.inject(ctx, a)
	if err == nil {
		hold(ctx, a.For)
		err = undo()
	}
	if err != nil {
		r.fail(fmt.Errorf("%s of %s: %w", a.Kind, a.Target, err))
	}
	f.To = time.Now()
	r.record(func(h *History) { h.Faults = append(h.Faults, f) })
}

// hold waits for the length of a fault.
func hold(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
}

func (r *rig) engine(name string) *engine {
	return r.engines[slices.IndexFunc(r.engines, func(e *engine) bool { return e.Name == name })]
}

// inject begins a fault and returns the function that ends it. The context of the run does not
// stop the end of a fault.
func (r *rig) inject(ctx context.Context, a Action) (undo func() error, err error) {
	ctx = context.WithoutCancel(ctx)
	switch kind, _, _ := strings.Cut(a.Target, "-"); {
	case a.Target == "machine":
		return func() error { return r.signalAll(syscall.SIGCONT) }, r.signalAll(syscall.SIGSTOP)
	case a.Target == "etcd":
		return r.injectAll(ctx, a)
	case r.links[a.Target] != nil:
		undo, _ := onLinks(a.Kind, r.links[a.Target])
		return undo, nil
	case kind == "etcd":
		m := r.members[slices.IndexFunc(r.members, func(m *member) bool { return m.name == a.Target })]
		return r.injectMember(ctx, a, m)
	case kind == "proxy":
		p := r.proxies[slices.IndexFunc(r.proxies, func(p *proxy) bool { return p.name == a.Target })]
		return r.injectProxy(ctx, a, p)
	default:
		return r.injectEngine(ctx, a, r.engine(a.Target))
	}
}

// onLinks applies a fault of the network to links; ok is false for another kind.
func onLinks(kind string, links ...*testkit.Link) (undo func() error, ok bool) {
	do := map[string]func(*testkit.Link){
		"cut": (*testkit.Link).Cut, "refuse": (*testkit.Link).Refuse, "freeze": (*testkit.Link).Freeze,
		"to-server": func(l *testkit.Link) { l.OneWay(testkit.ToServer) },
		"to-client": func(l *testkit.Link) { l.OneWay(testkit.ToClient) },
		"delay":     func(l *testkit.Link) { l.Delay(200 * time.Millisecond) },
		"slow":      func(l *testkit.Link) { l.Slow(4 << 10) },
	}[kind]
	if do == nil {
		return nil, false
	}
	for _, l := range links {
		do(l)
	}
	return func() error {
		for _, l := range links {
			l.Restore()
		}
		return nil
	}, true
}

// scripted are the faults that the simulated engine itself performs.
var scripted = map[string]string{
	"503": `{"kind":"status","status":503}`, "500": `{"kind":"status","status":500}`, "429": `{"kind":"status","status":429}`,
	"reset": `{"kind":"reset","tokens":3,"probability":0.5}`, "close": `{"kind":"close","tokens":3,"probability":0.5}`,
	"hang": `{"kind":"hang"}`, "error-event": `{"kind":"error_event"}`, "abort": `{"kind":"abort"}`,
	"slow": `{"kind":"slow","ttft":"300ms","itl":"10ms"}`,
}

func (r *rig) injectEngine(ctx context.Context, a Action, e *engine) (undo func() error, err error) {
	if fault, ok := scripted[a.Kind]; ok {
		return func() error { return r.send(ctx, "DELETE", e.direct()+"/fake/faults", "", nil) },
			r.send(ctx, "POST", e.direct()+"/fake/faults", fault, nil)
	}
	if undo, ok := onLinks(a.Kind, e.link); ok {
		return undo, nil
	}
	switch a.Kind {
	case "kill":
		return func() error { return r.startEngine(ctx, e, e.Models...) }, r.kill(e.proc)
	case "kill-node":
		return func() error {
			return errors.Join(r.startEngine(ctx, e, e.Models...), r.startAgent(ctx, e))
		}, errors.Join(r.kill(e.agent), r.kill(e.proc))
	case "stop":
		return func() error { return e.proc.Signal(syscall.SIGCONT) }, e.proc.Signal(syscall.SIGSTOP)
	case "hung-core":
		return func() error { return r.send(ctx, "POST", e.direct()+"/fake/core", "{}", nil) },
			r.send(ctx, "POST", e.direct()+"/fake/core", `{"hung":true}`, nil)
	case "other-model":
		if err := r.kill(e.proc); err != nil {
			return nil, err
		}
		return func() error {
			return errors.Join(r.kill(e.proc), r.startEngine(ctx, e, e.Models...))
		}, r.startEngine(ctx, e, ModelB)
	case "unload-adapter":
		return func() error { return r.adapter(ctx, e, "load") }, r.adapter(ctx, e, "unload")
	case "kill-agent":
		return func() error { return r.startAgent(ctx, e) }, r.kill(e.agent)
	case "stop-agent":
		return func() error { return e.agent.Signal(syscall.SIGCONT) }, e.agent.Signal(syscall.SIGSTOP)
	}
	return nil, fmt.Errorf("unknown fault %q", a.Kind)
}

func (r *rig) injectProxy(ctx context.Context, a Action, p *proxy) (undo func() error, err error) {
	if kind, ok := map[string]string{"cut-etcd": "cut", "to-etcd": "to-server", "from-etcd": "to-client", "delay-etcd": "delay"}[a.Kind]; ok {
		undo, _ := onLinks(kind, p.links...)
		return undo, nil
	}
	start := func() error { return r.startProxy(ctx, p) }
	switch a.Kind {
	case "kill":
		return start, r.kill(p.proc)
	case "kill-forget":
		return start, errors.Join(r.kill(p.proc), os.RemoveAll(p.dir))
	case "term":
		r.alive(p.proc)
		ctx, cancel := context.WithTimeout(ctx, soon)
		defer cancel()
		return start, p.proc.Stop(ctx)
	case "stop":
		return func() error { return p.proc.Signal(syscall.SIGCONT) }, p.proc.Signal(syscall.SIGSTOP)
	case "compact-behind":
		return func() error { return nil }, r.compactBehind(ctx, a, p)
	}
	return nil, fmt.Errorf("unknown fault %q", a.Kind)
}

func (r *rig) injectMember(ctx context.Context, a Action, m *member) (undo func() error, err error) {
	if undo, ok := onLinks(a.Kind, m.links...); ok {
		return undo, nil
	}
	nothing := func() error { return nil }
	switch a.Kind {
	case "kill":
		return func() error { return r.startMember(ctx, m) }, r.kill(m.proc)
	case "stop":
		return func() error { return m.proc.Signal(syscall.SIGCONT) }, m.proc.Signal(syscall.SIGSTOP)
	case "peer-freeze":
		undo, _ := onLinks("freeze", m.peerLink)
		return undo, nil
	case "move-leader":
		return nothing, r.moveLeader(ctx)
	case "compact":
		return nothing, r.compact(ctx)
	case "garbage":
		return r.garbage(ctx)
	}
	return nil, fmt.Errorf("unknown fault %q", a.Kind)
}

// injectAll injects a fault of the whole etcd cluster.
func (r *rig) injectAll(ctx context.Context, a Action) (undo func() error, err error) {
	switch a.Kind {
	case "no-quorum":
		return func() error {
			return errors.Join(r.startMember(ctx, r.members[0]), r.startMember(ctx, r.members[1]))
		}, errors.Join(r.kill(r.members[0].proc), r.kill(r.members[1].proc))
	case "wipe": // agents cannot reach it at first, so proxies see an empty store
		var agents []*testkit.Link
		for _, e := range r.engines {
			agents = append(agents, e.links...)
		}
		undo, _ := onLinks("cut", agents...)
		r.record(func(h *History) { h.Wipes = append(h.Wipes, time.Now()); r.epoch++ })
		for _, m := range r.members {
			err = errors.Join(err, r.kill(m.proc), os.RemoveAll(filepath.Join(r.f.Dir(), m.name)))
		}
		if err == nil {
			err = r.startEtcd(ctx)
		}
		return undo, err
	case "no-space":
		return func() error { return r.makeSpace(ctx) }, r.fill(ctx)
	}
	return nil, fmt.Errorf("unknown fault %q", a.Kind)
}

// compactBehind compacts a change that a proxy has not seen, so that its watch cannot resume at its last
// revision. The proxy is cut off from etcd too briefly to list again by itself.
func (r *rig) compactBehind(ctx context.Context, a Action, p *proxy) error {
	ctx, cancel := context.WithTimeout(ctx, soon)
	defer cancel()
	resp, err := r.etcd.Get(ctx, "/pd/", clientv3.WithPrefix())
	if err != nil {
		return nil // etcd has a fault
	}
	records := slices.DeleteFunc(resp.Kvs, func(kv *mvccpb.KeyValue) bool {
		rest := strings.TrimPrefix(string(kv.Key), "/pd/")
		return !strings.HasPrefix(rest, "prefill/") && !strings.HasPrefix(rest, "decode/")
	})
	if len(records) == 0 {
		return nil
	}
	kv := records[int(a.For)%len(records)]
	undo, _ := onLinks("cut", p.links...)
	// Write the same record again, unless it has changed; then another change, which the compaction may keep.
	_, err = r.etcd.Txn(ctx).If(clientv3.Compare(clientv3.ModRevision(string(kv.Key)), "=", kv.ModRevision)).
		Then(clientv3.OpPut(string(kv.Key), string(kv.Value), clientv3.WithLease(clientv3.LeaseID(kv.Lease)))).Commit()
	if err == nil {
		_, err = r.etcd.Put(ctx, filler, "")
	}
	if err == nil {
		err = r.compact(ctx)
	}
	if err != nil && ctx.Err() == nil { // the lease has ended, or etcd has a fault
		err = nil
	}
	return errors.Join(err, undo())
}

const filler = "/filler/"

// fill writes to etcd until it is out of space.
func (r *rig) fill(ctx context.Context) error {
	value := strings.Repeat("x", 1<<20)
	for i := range 4 * quota >> 20 {
		ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
		_, err := r.etcd.Put(ctx, fmt.Sprint(filler, i), value)
		cancel()
		if err != nil && strings.Contains(err.Error(), "space exceeded") {
			return nil
		}
	}
	return errors.New("etcd is not out of space")
}

// makeSpace frees space in etcd, as an operator does.
func (r *rig) makeSpace(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, soon)
	defer cancel()
	_, err := r.etcd.Delete(ctx, filler, clientv3.WithPrefix())
	err = errors.Join(err, r.compact(ctx))
	for _, m := range r.members {
		_, e := r.etcd.Defragment(ctx, m.client)
		err = errors.Join(err, e)
	}
	_, e := r.etcd.AlarmDisarm(ctx, &clientv3.AlarmMember{})
	return errors.Join(err, e)
}

// compact drops all history of etcd that the suite has recorded. A member may have a fault at the
// same time.
func (r *rig) compact(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, soon)
	defer cancel()
	return r.await(ctx, func() error {
		resp, err := r.etcd.Get(ctx, filler)
		if err != nil {
			return err
		}
		if r.currentEpoch() == 0 && r.seen.Load() < resp.Header.Revision {
			return errors.Join(errors.New("the watch of the suite is behind"), r.etcd.RequestProgress(ctx))
		}
		_, err = r.etcd.Compact(ctx, resp.Header.Revision)
		if err != nil && strings.Contains(err.Error(), "compacted") { // twice at the same revision
			return nil
		}
		return err
	})
}

// moveLeader makes another member the leader. A cluster without a leader is not an error.
func (r *rig) moveLeader(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	for _, m := range r.members {
		s, err := r.etcd.Status(ctx, m.client)
		if err != nil || s.Header.MemberId != s.Leader {
			continue
		}
		members, err := r.etcd.MemberList(ctx)
		if err != nil {
			return err
		}
		for _, other := range members.Members {
			if other.ID == s.Leader {
				continue
			}
			cli := etcdtest.Client(r.t, m.client) // only the leader accepts the call
			if _, err = cli.MoveLeader(ctx, other.ID); err == nil {
				return nil
			}
		}
		return err
	}
	return nil
}

// garbage overwrites the record of an engine with a value that cannot be used. Its agent repairs it.
func (r *rig) garbage(ctx context.Context) (undo func() error, err error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	resp, err := r.etcd.Get(ctx, "/pd/decode/", clientv3.WithPrefix())
	if err != nil {
		return nil, fmt.Errorf("no record to overwrite: %w", err)
	}
	if len(resp.Kvs) == 0 { // etcd was wiped
		return func() error { return nil }, nil
	}
	kv := resp.Kvs[int(r.plan.Seed)%len(resp.Kvs)]
	key := string(kv.Key)
	r.record(func(h *History) { h.Garbage[strings.TrimPrefix(key, "/pd/")] = true })
	_, err = r.etcd.Put(ctx, key, `{"v":1,"models":[`, clientv3.WithLease(clientv3.LeaseID(kv.Lease)))
	if errors.Is(err, rpctypes.ErrLeaseNotFound) { // it has just expired, and the record with it
		return func() error { return nil }, nil
	}
	return func() error {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), soon)
		defer cancel()
		// The agent repairs its record by itself at the next check; a static record is restored here.
		if kv.Lease == 0 {
			_, err := r.etcd.Put(ctx, key, string(kv.Value))
			return err
		}
		return nil
	}, err
}

// restartBehind restarts a prefill engine with the same engine id while a decode engine is suspended, and
// resumes decode when all proxies know the new incarnation. With its transfer params, decode would then read
// blocks of other requests, so the proxies must not use its answer.
func (r *rig) restartBehind(ctx context.Context, a Action) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), soon)
	defer cancel()
	partners := r.plan.nixl("decode")
	p, d := r.engine(a.Target), r.engine(partners[int(a.For)%len(partners)])
	free, ok := r.take(p.Name, d.Name)
	if !ok {
		return
	}
	defer free()
	id := func() string {
		var rec struct{ ID string }
		if resp, err := r.etcd.Get(ctx, "/pd/prefill/"+p.address()); err == nil && len(resp.Kvs) == 1 {
			_ = json.Unmarshal(resp.Kvs[0].Value, &rec) // garbage has no id
		}
		return rec.ID
	}
	applied, stop := context.WithTimeout(ctx, 3*time.Second)
	defer stop()
	before, from := id(), time.Now()
	if before == "" { // a stall has just ended its lease: the next id in etcd would be that of before the restart
		return
	}
	err := d.proc.Signal(syscall.SIGSTOP)
	hold(ctx, 400*time.Millisecond) // shorter than the time for which proxies wait for a silent engine
	killed := time.Now()
	err = errors.Join(err, r.kill(p.proc), r.startAgain(ctx, p, p.Models...), r.await(ctx, func() error {
		if now := id(); now == "" || now == before {
			return errors.New("its agent has not noticed the restart")
		}
		return nil
	}))
	follow := r.await(applied, func() error { return r.allAt(ctx, "/pd/prefill/"+p.address()) })
	known := time.Now().Add(shown)
	if follow == nil {
		err = errors.Join(err, d.proc.Signal(syscall.SIGCONT))
	} else { // a proxy cannot know of the restart: decode must not continue with its transfer params
		err = errors.Join(err, r.kill(d.proc), r.startEngine(ctx, d, d.Models...))
		known = time.Now()
	}
	r.fail(err)
	now := time.Now()
	r.record(func(h *History) {
		h.Faults = append(h.Faults, Fault{Span: Span{from, now}, Kind: "stop", Target: d.Name}, Fault{Span: Span{from, now}, Kind: "kill", Target: p.Name},
			Fault{Span{killed, known}, "restart-behind", p.Name, d.address()})
	})
}

// shown is the time that a forwarded answer may take to reach its client.
const shown = 250 * time.Millisecond

// allAt returns nil if every proxy has applied the last change of a key.
func (r *rig) allAt(ctx context.Context, key string) error {
	resp, err := r.etcd.Get(ctx, key)
	if err != nil || len(resp.Kvs) != 1 {
		return fmt.Errorf("read %s: %w", key, err)
	}
	for _, p := range r.proxies {
		s, err := r.poll(ctx, p)
		if err != nil {
			return err
		}
		if s.Revision < resp.Kvs[0].ModRevision {
			return fmt.Errorf("%s is at revision %d", p.name, s.Revision)
		}
	}
	return nil
}
