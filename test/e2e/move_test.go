package e2e_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.etcd.io/etcd/etcdutl/v3/snapshot"
	"go.uber.org/zap"

	"github.com/pdmesh/pdmesh/internal/discovery/schema"
	"github.com/pdmesh/pdmesh/internal/discovery/store"
	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/sim/fleet"
	"github.com/pdmesh/pdmesh/sim/testkit"
	"github.com/pdmesh/pdmesh/sim/testkit/longform"
	"github.com/pdmesh/pdmesh/test/harness"
)

// house is a fleet on the etcd that its first proxy carries: two instances of
// each role with agents, a static decode instance, and a removal active.
type house struct {
	t       *testing.T
	f       *fleet.Fleet
	old     string // the embedded etcd
	proxies []*fleet.Proxy
	nodes   []*fleet.Node
	static  *fleet.Node
}

// removedAddress is one that an operator has taken out.
const removedAddress = "127.0.0.1:9"

func newHouse(t *testing.T) *house {
	t.Helper()
	h := &house{t: t, f: newFleet(t)}
	args := []string{"--connector", "nixl", "--audit-interval", "2s"}
	for i := range 2 {
		s := fleet.ProxySpec{Name: fmt.Sprintf("proxy-%d", i+1), AdminKey: adminKey, Args: args}
		if i > 0 {
			s.EtcdEndpoints = []string{h.old}
		}
		p, err := h.f.StartProxy(t.Context(), s)
		if err != nil {
			t.Fatal(err)
		}
		h.proxies, h.old = append(h.proxies, p), p.Etcd[0]
	}
	for _, role := range instance.Roles() {
		for i := range 2 {
			h.nodes = append(h.nodes, node(t, h.f, fmt.Sprintf("%s-%d", role, i+1), role, 0, h.old))
		}
	}
	h.static = node(t, h.f, "decode-static", instance.Decode, 0)
	runProgram(t, "pdctl", "--etcd-endpoints", h.old, "add", "decode", h.static.Address)
	runProgram(t, "pdctl", "--etcd-endpoints", h.old, "remove", "--force", "decode", removedAddress, "--reason", "new disks")
	h.serveAll()
	return h
}

func (h *house) serveAll() {
	h.t.Helper()
	for _, p := range h.proxies {
		if err := p.WaitFor(h.t.Context(), 2, 3); err != nil {
			h.t.Fatal(err)
		}
	}
}

// member is what must be the same in both houses.
type member struct {
	State  instance.State
	View   instance.View
	Intent instance.Intent
	Static bool
	ID     string // incarnation of an engine with an agent
	Models string
}

func members(list []instance.Listing) map[string]member {
	out := map[string]member{}
	for _, l := range list {
		m := member{l.State, l.View, l.Intent, l.Static, l.ID, strings.Join(l.Models, ",")}
		if l.Static {
			m.ID = "" // goes by the revision, which is another in another etcd
		}
		out[string(l.Role)+"/"+l.Address] = m
	}
	return out
}

// membership is what etcd says, by pdctl.
func (h *house) membership(etcd string) map[string]member {
	h.t.Helper()
	var out struct{ Instances []instance.Listing }
	text := runProgram(h.t, "pdctl", "list", "-o", "json", "--etcd-endpoints", etcd)
	if err := json.Unmarshal([]byte(text), &out); err != nil {
		h.t.Fatal(err)
	}
	return members(out.Instances)
}

// moveProxies restarts the proxies at the new etcd, one after the other, the one
// that carries the old etcd last. Each comes back with all instances: those it
// saved serve as orphans as long as they answer.
func (h *house) moveProxies(etcd []string) {
	h.t.Helper()
	for _, i := range []int{1, 0} {
		p := h.proxies[i]
		if err := p.Stop(h.t.Context()); err != nil {
			h.t.Fatal(err)
		}
		spec := p.Spec
		spec.EtcdEndpoints = etcd
		next, err := h.f.StartProxy(h.t.Context(), spec)
		if err != nil {
			h.t.Fatal(err)
		}
		h.proxies[i] = next
		if err := next.WaitFor(h.t.Context(), 2, 3); err != nil {
			h.t.Fatal(err)
		}
	}
}

// moveAgents restarts the agents at the new etcd, one after the other. The
// second signal skips the drain, which would be in vain: no proxy hears of it.
func (h *house) moveAgents(etcd []string) {
	h.t.Helper()
	for _, n := range h.nodes {
		for range 2 {
			if err := n.Agent.Signal(syscall.SIGTERM); err != nil {
				h.t.Fatal(err)
			}
			select {
			case <-n.Agent.Done():
			case <-time.After(200 * time.Millisecond): // two signals at once are one
			}
		}
		select {
		case <-n.Agent.Done():
		case <-time.After(soon):
			h.t.Fatalf("%s does not end", n.Agent.Name())
		}
		if err := n.StartAgent(h.t.Context(), etcd...); err != nil {
			h.t.Fatal(err)
		}
		testkit.Eventually(h.t, soon, func() error {
			raw, err := st(h.t, etcd[0]).Reader.Get(h.t.Context(), instance.Key{Role: n.Spec.Role, Address: n.Address})
			if err != nil || len(raw) != 1 || raw[0].Lease == 0 {
				return fmt.Errorf("%s is not registered: %v, %w", n.Address, raw, err)
			}
			return nil
		})
	}
}

// settled waits until everybody shows in the new house what was in the old one.
func (h *house) settled(etcd []string, before map[string]member) {
	h.t.Helper()
	testkit.Eventually(h.t, soon, func() error {
		for _, e := range etcd {
			if got := h.membership(e); !maps.Equal(got, before) {
				return fmt.Errorf("%s has\n%v, before there was\n%v", e, got, before)
			}
		}
		for _, p := range h.proxies {
			s, err := p.Status(h.t.Context())
			if err != nil {
				return err
			}
			if got := members(s.Instances); !maps.Equal(got, before) {
				return fmt.Errorf("%s shows\n%v, before there was\n%v", p.Name(), got, before)
			}
			var page struct {
				Etcd struct {
					State         string
					Orphans, Held int
					Kept          []string
				}
			}
			if err := json.Unmarshal(get(h.t, p.URL()+"/status"), &page); err != nil {
				return err
			}
			if e := page.Etcd; e.State != "live" || e.Orphans+e.Held+len(e.Kept) > 0 {
				return fmt.Errorf("%s: %+v", p.Name(), e)
			}
		}
		return nil
	})
}

// move is the whole way, under load; furnish brings the data into the new house.
func (h *house) move(furnish func() *testkit.Cluster) {
	h.t.Helper()
	before := h.membership(h.old)
	if len(before) != 5 {
		h.t.Fatalf("the old house holds %v", before)
	}
	l := harness.StartRetryingLoad(h.t, model, 8, 5*time.Millisecond, h.proxies[0].URL(), h.proxies[1].URL())
	l.Served(50)
	etcd := furnish().Endpoints()
	l.Served(50)
	h.moveProxies(etcd)
	l.Served(50)
	h.moveAgents(etcd)
	l.Served(50)
	h.settled(etcd, before)
	if out := runProgram(h.t, "pdctl", "--etcd-endpoints", etcd[2], "get", "decode/"+removedAddress); !strings.Contains(out, `"state":"removed"`) {
		h.t.Errorf("the removal has not moved along:\n%s", out)
	}
	l.Served(50)
	if n := l.Broken(); n > 0 {
		h.t.Errorf("%d streams broke", n)
	}
	l.Finish() // fails the test if one request has
}

func TestMoveByExport(t *testing.T) {
	longform.Test(t)
	h := newHouse(t)
	h.move(func() *testkit.Cluster {
		c := testkit.StartCluster(t, 3)
		file := filepath.Join(t.TempDir(), "fleet.jsonl")
		if err := os.WriteFile(file, []byte(runProgram(t, "pdctl", "--etcd-endpoints", h.old, "export")), 0o600); err != nil {
			t.Fatal(err)
		}
		said := runProgram(t, "pdctl", "--etcd-endpoints", strings.Join(c.Endpoints(), ","), "import", file)
		if strings.Count(said, ": written\n") != 2 || strings.Count(said, "skipped: held by a lease") != 4 {
			t.Fatalf("import says\n%s", said)
		}
		return c
	})
}

// revisionBump is more than an etcd of this kind writes in its life: revisions
// of the new house never look older than what a proxy has seen.
const revisionBump = 1_000_000_000

func TestMoveBySnapshot(t *testing.T) {
	longform.Test(t)
	h := newHouse(t)
	h.move(func() *testkit.Cluster {
		file := filepath.Join(t.TempDir(), "etcd.snapshot")
		saveSnapshot(t, h.old, file)
		c := testkit.StartClusterFrom(t, 3, func(m testkit.Member) {
			err := snapshot.NewV3(zap.NewNop()).Restore(snapshot.RestoreConfig{
				SnapshotPath: file, Name: m.Name, OutputDataDir: m.Dir, PeerURLs: []string{m.PeerURL},
				InitialCluster: m.Cluster, InitialClusterToken: "moved",
				RevisionBump: revisionBump, MarkCompacted: true,
			})
			if err != nil {
				t.Fatal(err)
			}
		})
		log, err := store.New(c.Client(t), layout(t), "test").Reader.AuditLog(t.Context(), 0)
		if err != nil || len(log) != 2 || log[0].What != "remove" {
			t.Fatalf("the audit log has not moved along: %v, %v", log, err)
		}
		resp, err := c.Client(t).Get(t.Context(), "/pd/meta/schema")
		if err != nil || resp.Header.Revision < revisionBump {
			t.Fatalf("revision %v, %v", resp, err)
		}
		return c
	})
}

// saveSnapshot is what etcdctl snapshot save does, over the client port.
func saveSnapshot(t *testing.T, etcd, file string) {
	t.Helper()
	r, err := testkit.Client(t, etcd).Snapshot(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	f, err := os.Create(file)
	if err != nil {
		t.Fatal(err)
	}
	_, err = io.Copy(f, r)
	if err = errors.Join(err, f.Close()); err != nil {
		t.Fatal(err)
	}
}

func layout(t *testing.T) schema.Layout {
	t.Helper()
	l, err := schema.NewLayout("/pd")
	if err != nil {
		t.Fatal(err)
	}
	return l
}
