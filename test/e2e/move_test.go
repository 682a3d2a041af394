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

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/etcdutl/v3/snapshot"
	"go.uber.org/zap"

	"github.com/pdmesh/pdmesh/internal/discovery/schema"
	"github.com/pdmesh/pdmesh/internal/discovery/store"
	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/sim/fleet"
	"github.com/pdmesh/pdmesh/sim/testkit"
	"github.com/pdmesh/pdmesh/sim/testkit/etcdtest"
	"github.com/pdmesh/pdmesh/sim/testkit/longform"
	"github.com/pdmesh/pdmesh/test/harness"
)

// moveRig is a fleet with the embedded etcd of its first proxy: two instances of each role with agents, a
// static decode instance, and a removal.
type moveRig struct {
	t       *testing.T
	f       *fleet.Fleet
	old     string // the embedded etcd
	proxies []*fleet.Proxy
	nodes   []*fleet.Node
	static  *fleet.Node
}

// removedAddress is the address of an instance that an operator has removed.
const removedAddress = "127.0.0.1:9"

func newMoveRig(t *testing.T) *moveRig {
	t.Helper()
	h := &moveRig{t: t, f: newFleet(t)}
	args := []string{"--connector", "nixl", "--audit-interval", "2s"}
	for i := range 2 {
		s := fleet.ProxySpec{Name: fmt.Sprintf("proxy-%d", i+1), AdminKey: adminKey, Args: args}
		if i > 0 {
			s.EtcdEndpoints = []string{h.old}
		}
		p, err := h.f.StartProxy(t.Context(), s)
		require.NoError(t, err)
		h.proxies, h.old = append(h.proxies, p), p.Etcd[0]
	}
	for _, role := range instance.Roles() {
		for i := range 2 {
			h.nodes = append(h.nodes, node(t, h.f, fmt.Sprintf("%s-%d", role, i+1), role, 0, h.old))
		}
	}
	h.static = node(t, h.f, "decode-static", instance.Decode, 0)
	runProgram(t, "pdctl", "--etcd-endpoints", h.old, "add", "decode", h.static.Address)
	runProgram(t, "pdctl", "--etcd-endpoints", h.old, "remove", "--force", "--yes", "decode", removedAddress, "--reason", "new disks")
	h.serveAll()
	return h
}

func (h *moveRig) serveAll() {
	h.t.Helper()
	for _, p := range h.proxies {
		require.NoError(h.t, p.WaitFor(h.t.Context(), 2, 3))
	}
}

// member holds the properties of an instance that must be the same before and after the move.
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
			m.ID = "" // contains the revision, which differs in the new etcd
		}
		out[string(l.Role)+"/"+l.Address] = m
	}
	return out
}

// membership returns the members in etcd as pdctl lists them.
func (h *moveRig) membership(etcd string) map[string]member {
	h.t.Helper()
	var out struct{ Instances []instance.Listing }
	text := runProgram(h.t, "pdctl", "list", "-o", "json", "--etcd-endpoints", etcd)
	require.NoError(h.t, json.Unmarshal([]byte(text), &out))
	return members(out.Instances)
}

// moveProxies restarts the proxies with the new etcd one after the other, last the one with the old
// embedded etcd. Each returns with all instances: saved instances are used as orphans while they answer
// probes.
func (h *moveRig) moveProxies(etcd []string) {
	h.t.Helper()
	for _, i := range []int{1, 0} {
		p := h.proxies[i]
		require.NoError(h.t, p.Stop(h.t.Context()))
		spec := p.Spec
		spec.EtcdEndpoints = etcd
		next, err := h.f.StartProxy(h.t.Context(), spec)
		require.NoError(h.t, err)
		h.proxies[i] = next
		require.NoError(h.t, next.WaitFor(h.t.Context(), 2, 3))
	}
}

// moveAgents restarts the agents with the new etcd one after the other. A second signal skips the
// drain, which no proxy would observe.
func (h *moveRig) moveAgents(etcd []string) {
	h.t.Helper()
	for _, n := range h.nodes {
		require.NoError(h.t, n.Agent.Signal(syscall.SIGTERM))
		// A signal that is pending would be merged with the second one.
		testkit.Eventually(h.t, soon, func() error {
			if log, err := os.ReadFile(n.Agent.LogFile()); err != nil || !strings.Contains(string(log), "a second signal skips the wait") {
				return fmt.Errorf("%s has not received the first signal: %w", n.Address, err)
			}
			return nil
		})
		require.NoError(h.t, n.Agent.Signal(syscall.SIGTERM))
		select {
		case <-n.Agent.Done():
		case <-time.After(soon):
			h.t.Fatalf("%s does not exit", n.Agent.Name())
		}
		require.NoError(h.t, n.StartAgent(h.t.Context(), etcd...))
		testkit.Eventually(h.t, soon, func() error {
			raw, err := st(h.t, etcd[0]).Reader.Get(h.t.Context(), instance.Key{Role: n.Spec.Role, Address: n.Address})
			if err != nil || len(raw) != 1 || raw[0].Lease == 0 {
				return fmt.Errorf("%s is not registered: %v, %w", n.Address, raw, err)
			}
			return nil
		})
	}
}

// awaitMembers waits until every view of the new etcd shows the members of the old one.
func (h *moveRig) awaitMembers(etcd []string, before map[string]member) {
	h.t.Helper()
	testkit.Eventually(h.t, soon, func() error {
		for _, e := range etcd {
			if got := h.membership(e); !maps.Equal(got, before) {
				return fmt.Errorf("%s has\n%v, before the move\n%v", e, got, before)
			}
		}
		for _, p := range h.proxies {
			s, err := p.Status(h.t.Context())
			if err != nil {
				return err
			}
			if got := members(s.Instances); !maps.Equal(got, before) {
				return fmt.Errorf("%s shows\n%v, before the move\n%v", p.Name(), got, before)
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

// move performs the whole move under load; fill copies the data to the new etcd.
func (h *moveRig) move(fill func() *etcdtest.Cluster) {
	h.t.Helper()
	before := h.membership(h.old)
	require.Len(h.t, before, 5, "the old etcd")
	l := harness.StartRetryingLoad(h.t, model, 8, 5*time.Millisecond, h.proxies[0].URL(), h.proxies[1].URL())
	l.Served(50)
	etcd := fill().Endpoints()
	l.Served(50)
	h.moveProxies(etcd)
	l.Served(50)
	h.moveAgents(etcd)
	l.Served(50)
	h.awaitMembers(etcd, before)
	out := runProgram(h.t, "pdctl", "--etcd-endpoints", etcd[2], "get", "decode/"+removedAddress)
	assert.Contains(h.t, out, `"state":"removed"`, "the removal was not copied:\n%s", out)
	l.Served(50)
	l.FinishUncut()
}

func TestMoveByExport(t *testing.T) {
	t.Parallel()
	longform.Test(t)
	h := newMoveRig(t)
	h.move(func() *etcdtest.Cluster {
		c := etcdtest.StartCluster(t, 3)
		file := filepath.Join(t.TempDir(), "fleet.yaml")
		require.NoError(t, os.WriteFile(file, []byte(runProgram(t, "pdctl", "--etcd-endpoints", h.old, "export")), 0o600))
		out := runProgram(t, "pdctl", "--etcd-endpoints", strings.Join(c.Endpoints(), ","), "apply", "-f", file)
		require.Contains(t, out, "; keys: 2\n")
		return c
	})
}

// revisionBump exceeds the number of writes of such an etcd, so that no revision of the new etcd is
// lower than one that a proxy has seen.
const revisionBump = 1_000_000_000

func TestMoveBySnapshot(t *testing.T) {
	t.Parallel()
	longform.Test(t)
	h := newMoveRig(t)
	h.move(func() *etcdtest.Cluster {
		file := filepath.Join(t.TempDir(), "etcd.snapshot")
		saveSnapshot(t, h.old, file)
		c := etcdtest.StartClusterFrom(t, 3, func(m etcdtest.Member) {
			err := snapshot.NewV3(zap.NewNop()).Restore(snapshot.RestoreConfig{
				SnapshotPath: file, Name: m.Name, OutputDataDir: m.Dir, PeerURLs: []string{m.PeerURL},
				InitialCluster: m.Cluster, InitialClusterToken: "moved",
				RevisionBump: revisionBump, MarkCompacted: true,
			})
			require.NoError(t, err)
		})
		log, err := store.New(c.Client(t), layout(t), "test").Reader.AuditLog(t.Context(), 0)
		require.True(t, err == nil && len(log) == 2 && log[0].What == "remove",
			"the audit log was not copied: %v, %v", log, err)
		resp, err := c.Client(t).Get(t.Context(), "/pd/meta/schema")
		require.True(t, err == nil && resp.Header.Revision >= revisionBump, "revision %v, %v", resp, err)
		return c
	})
}

// saveSnapshot saves a snapshot over the client port, like etcdctl snapshot save.
func saveSnapshot(t *testing.T, etcd, file string) {
	t.Helper()
	r, err := etcdtest.Client(t, etcd).Snapshot(t.Context())
	require.NoError(t, err)
	defer r.Close()
	f, err := os.Create(file)
	require.NoError(t, err)
	_, err = io.Copy(f, r)
	if err = errors.Join(err, f.Close()); err != nil {
		t.Fatal(err)
	}
}

func layout(t *testing.T) schema.Layout {
	t.Helper()
	l, err := schema.NewLayout("/pd")
	require.NoError(t, err)
	return l
}
