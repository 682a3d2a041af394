package faults_test

import (
	"fmt"
	"maps"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/pdmesh/pdmesh/internal/agent/agentctl"
	"github.com/pdmesh/pdmesh/internal/discovery/lease"
	"github.com/pdmesh/pdmesh/internal/discovery/watch"
	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/sim/testkit"
	"github.com/pdmesh/pdmesh/sim/testkit/etcdtest"
	"github.com/pdmesh/pdmesh/sim/testkit/longform"
	"github.com/pdmesh/pdmesh/sim/testkit/members"
	"github.com/pdmesh/pdmesh/test/harness"
)

// follows adds a static instance, waits until every proxy shows it, and removes it. It returns the time until
// all showed it.
func (r *rig) follows(n int) time.Duration {
	r.t.Helper()
	cli := members.Dial(r.t, r.agents...)
	start := time.Now()
	k := decodeAt(n)
	members.Put(r.t, cli, members.Layout(r.t).Instance(k), `{"v":1,"models":["other/model"],"state":"draining"}`)
	r.awaitStatus(func(s status) error {
		if _, ok := s.entry(k.Address); !ok {
			return fmt.Errorf("%s is not known; etcd is %s", k.Address, s.Etcd.State)
		}
		return nil
	})
	took := time.Since(start)
	if _, err := cli.Delete(r.t.Context(), members.Layout(r.t).Instance(k)); err != nil {
		r.t.Fatal(err)
	}
	return took
}

// Most members of etcd are down: the proxies use the last known membership and report it as stale.
func TestFault08_QuorumLost(t *testing.T) {
	row(t, 8)
	c := etcdtest.StartCluster(t, 3)
	// A TTL longer than the outage: leases do not expire while there is no leader, and row 9 covers the
	// time after it resumes.
	r := build(t, plan{etcd: c.Endpoints(), ttl: outage(30*time.Second, 120*time.Second), proxyArgs: []string{"--audit-interval", "2s"}})
	before := keys(t, c.Client(t))
	l, p := r.load(), r.startPool()
	for _, m := range c.Members[:2] {
		m.Pause()
	}
	r.awaitStatus(etcdIs(string(watch.Stale)))
	wait(t, outage(8*time.Second, time.Minute))
	l.Served(20)
	for _, m := range c.Members[:2] {
		m.Resume()
	}
	r.awaitStatus(etcdIs(string(watch.Live)))
	measured(t, 8, "resume to following again", r.follows(1), 0)
	l.Served(20)
	p.finish(l, 2)
	if after := keys(t, c.Client(t)); !maps.Equal(before, after) {
		t.Logf("leases before %v, after %v: the leader resumed as leader and revoked them", before, after)
	}
}

// A single etcd is paused until every lease has expired. When it resumes it revokes all of them at
// once, although every agent is running.
func TestFault09_EtcdPaused(t *testing.T) {
	row(t, 9)
	lengths := []time.Duration{6 * time.Second}
	if long() {
		lengths = []time.Duration{12 * time.Second, 30 * time.Second}
	}
	for _, length := range lengths {
		t.Run(length.String(), func(t *testing.T) {
			t.Parallel()
			etcd := etcdtest.Start(t)
			r := build(t, plan{etcd: []string{etcd.Endpoint()}, proxyArgs: []string{"--audit-interval", "2s"}})
			cli := etcd.Client(t)
			before := keys(t, cli)
			l, p := r.load(), r.startPool()
			etcd.Pause()
			wait(t, length)
			l.Served(20)
			etcd.Resume()
			resumed := time.Now()
			testkit.Eventually(t, soon, func() error {
				after := keys(t, cli)
				for k, b := range before {
					if after[k].Lease == b.Lease || after[k].Lease == 0 {
						return fmt.Errorf("%s: before %+v, after %+v", k, b, after[k])
					}
				}
				return nil
			})
			measured(t, 9, "pause of "+length.String()+": resume to the last re-registration (TTL 3 s)", time.Since(resumed), ttl/3+time.Second)
			r.awaitAll()
			l.Served(20)
			p.finish(l, 2)
		})
	}
}

// A single etcd is killed and restarts on its data: the same leases hold the same keys.
func TestFault10_EtcdKilled(t *testing.T) {
	row(t, 10)
	etcd := etcdtest.Start(t)
	// After the restart a lease has its full TTL again. The agents by then try to connect every three
	// seconds and must renew in time.
	r := build(t, plan{etcd: []string{etcd.Endpoint()}, proxies: 2, ttl: longer, proxyArgs: []string{"--audit-interval", "2s"}})
	before := keys(t, etcd.Client(t))
	l, p := r.load(), r.startPool()
	etcd.Kill()
	r.awaitStatus(etcdIs(string(watch.Stale)))
	wait(t, outage(longer+2*time.Second, 90*time.Second))
	l.Served(20)
	etcd.Restart()
	measured(t, 10, "restart to an event at every proxy", r.follows(1), 5*time.Second)
	r.awaitStatus(etcdIs(string(watch.Live)))
	for _, n := range r.nodes() {
		r.awaitAgent(n, registrationIs(lease.Registered))
	}
	l.Served(20)
	p.finish(l, 2)
	after := keys(t, etcd.Client(t))
	assert.True(t, maps.Equal(before, after), "keys before %v, after %v", before, after)
}

// etcd is paused, and when it resumes no agent can register, because etcd is out of space. The
// instances are used while their probes pass, for any length of time.
func TestFault28_PausedThenNoSpace(t *testing.T) {
	longform.Test(t)
	row(t, 28)
	etcd := etcdtest.Start(t, etcdtest.WithQuota(4<<20))
	r := build(t, plan{etcd: []string{etcd.Endpoint()}, proxyArgs: []string{"--audit-interval", "2s", "--orphan-grace", "2s"}})
	cli := etcd.Client(t)
	etcdtest.FillUp(t, cli)
	l, p := r.load(), r.startPool()
	etcd.Pause()
	wait(t, outage(6*time.Second, 30*time.Second))
	etcd.Resume()
	for _, n := range r.nodes() {
		r.awaitAgent(n, outOfSpace)
	}
	r.awaitView(instance.Orphan)
	wait(t, 6*time.Second) // three times the grace period
	l.Served(20)
	etcdtest.MakeRoom(t, cli)
	for _, n := range r.nodes() {
		r.awaitAgent(n, registrationIs(lease.Registered))
	}
	r.awaitView("")
	l.Served(20)
	p.finish(l, 2)
}

// outOfSpace is a condition for the alarm that an operator sees.
func outOfSpace(rep agentctl.Report) error {
	if rep.Registration.Phase == string(lease.Registered) || !contains(rep.Registration.Reason, "out of space") {
		return fmt.Errorf("%s: %+v", rep.Address, rep.Registration)
	}
	return nil
}

// etcd is out of space: registered instances remain, and a new registration fails with the reason.
func TestFault19_NoSpace(t *testing.T) {
	longform.Test(t)
	row(t, 19)
	etcd := etcdtest.Start(t, etcdtest.WithQuota(4<<20))
	r := build(t, plan{etcd: []string{etcd.Endpoint()}, ttl: longer, proxyArgs: []string{"--audit-interval", "2s"}})
	cli := etcd.Client(t)
	before := keys(t, cli)
	l, p := r.load(), r.startPool()
	etcdtest.FillUp(t, cli)
	late := r.node(instance.Decode, 3, ttl)
	r.awaitAgent(late, outOfSpace)
	out := mustExit(t, 1, "pdctl", "add", "decode", "127.0.0.1:9", "--no-verify", "--etcd-endpoints", etcd.Endpoint())
	assert.True(t, contains(out, "space"), "pdctl add prints %q", out)
	wait(t, longer+longer/2) // the leases are renewed nevertheless
	after := keys(t, cli)
	assert.True(t, maps.Equal(before, after), "keys before %v, after %v", before, after)
	l.Served(20)
	etcdtest.MakeRoom(t, cli)
	r.decode = append(r.decode, late)
	r.awaitAll()
	l.Served(20)
	p.finish(l, 2)
}

// etcd is not reachable at the start: the proxy answers with an error in the OpenAI format, and
// becomes ready when etcd appears.
func TestFault15_StartWithNothing(t *testing.T) {
	row(t, 15)
	etcd := etcdtest.Start(t)
	etcd.Kill()
	r := &rig{t: t, f: harness.NewFleet(t, bin), etcd: []string{etcd.Endpoint()}, agents: []string{etcd.Endpoint()}}
	p, address := r.proxyNotReady("--audit-interval", "2s", "--state-dir", stateDir(t))
	code, body := r.try(address)
	assert.True(t, code == 503 && contains(body, `"error"`) && contains(body, `"message"`) && contains(body, `"type"`),
		"a request is answered %d %s", code, body)
	if code, body := page(t, "http://"+address+"/readyz"); code != 503 || !contains(body, etcd.Endpoint()) {
		t.Errorf("/readyz: %d %s", code, body)
	}
	etcd.Restart()
	r.prefill = append(r.prefill, r.node(instance.Prefill, 1, ttl))
	r.decode = append(r.decode, r.node(instance.Decode, 1, ttl))
	r.awaitAnswer(address)
	if code, body := page(t, "http://"+address+"/readyz"); code != 200 {
		t.Errorf("/readyz: %d %s", code, body)
	}
	select {
	case <-p.Done():
		t.Errorf("the proxy ended: %v", p.Err())
	default:
	}
}
