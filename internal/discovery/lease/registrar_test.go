package lease_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sirupsen/logrus"
	"github.com/sirupsen/logrus/hooks/test"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"

	"github.com/pdmesh/pdmesh/internal/cli/background"
	"github.com/pdmesh/pdmesh/internal/discovery/etcd"
	"github.com/pdmesh/pdmesh/internal/discovery/lease"
	"github.com/pdmesh/pdmesh/internal/discovery/store"
	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/sim/testkit"
	"github.com/pdmesh/pdmesh/sim/testkit/etcdtest"
	"github.com/pdmesh/pdmesh/sim/testkit/leak"
	"github.com/pdmesh/pdmesh/sim/testkit/members"
)

// A new registrar's reaction to each state of its key.
func TestRegistrarOwnership(t *testing.T) {
	t.Parallel()
	cli, l := etcdtest.Start(t).Client(t), members.Layout(t)
	removed := `{"v":1,"state":"removed"}`
	for i, c := range []struct {
		name     string
		value    string // the existing record; "-": none
		leased   bool
		override string
		want     lease.Phase
		says     string
	}{
		{name: "absent", value: "-", want: lease.Registered},
		{name: "same id", value: `{"id":"A","host_id":"elsewhere"}`, leased: true, want: lease.Registered},
		{name: "same host, other id", value: `{"id":"B","host_id":"host-1"}`, leased: true, want: lease.Registered},
		{name: "other host", value: `{"id":"B","host_id":"host-2","agent":"x\u0007"}`, leased: true, want: lease.Conflict, says: `host-2`},
		{name: "no host id", value: `{"id":"B"}`, leased: true, want: lease.Conflict},
		{name: "leased bare record", value: ``, leased: true, want: lease.Conflict},
		{name: "leased broken value", value: `{`, leased: true, want: lease.Conflict, says: "cannot be read"},
		{name: "static", value: `{"models":["m"]}`, want: lease.StaticPresent},
		{name: "static with our id", value: `{"id":"A","host_id":"host-1"}`, want: lease.StaticPresent},
		{name: "static bare", value: ``, want: lease.StaticPresent},
		{name: "removed", value: "-", override: removed, want: lease.Overridden, says: "removed"},
		{name: "removed, with a record", value: `{"id":"A"}`, leased: true, override: removed, want: lease.Overridden},
		{name: "drained", value: "-", override: `{"v":1,"state":"drain"}`, want: lease.Registered},
		{name: "broken override", value: "-", override: `{"state":`, want: lease.Registered},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			k := members.Prefill(fmt.Sprintf("10.0.0.%d:8100", i+1))
			if c.override != "" {
				members.Put(t, cli, l.Override(k), c.override)
			}
			if c.value != "-" {
				var opts []clientv3.OpOption
				if c.leased {
					opts = append(opts, clientv3.WithLease(members.Lease(t, cli, 600)))
				}
				members.Put(t, cli, l.Instance(k), c.value, opts...)
			}
			before := members.RawKey(t, cli, k)
			r := members.Register(t, cli, members.RegistrarOptions(t, k))
			r.Set(instance.Record{ID: "A", Models: []string{"m"}})
			members.WaitPhase(t, r, c.want)
			s, after := r.Status(), members.RawKey(t, cli, k)
			if c.want == lease.Registered {
				if after == nil || after.Lease != s.LeaseID || after.ModRevision != s.ModRevision || s.Err != "" {
					t.Fatalf("status %+v, key %+v", s, after)
				}
				require.Contains(t, string(after.Value), `"host_id":"host-1"`)
				return
			}
			if s.ModRevision != 0 || s.Err == "" || !strings.Contains(s.Err, c.says) || strings.Contains(s.Err, "\a") {
				t.Errorf("status %+v", s)
			}
			require.Equal(t, after == nil, before == nil, "before %+v", before, after)
			if before != nil && (before.ModRevision != after.ModRevision || before.Lease != after.Lease || string(before.Value) != string(after.Value)) {
				t.Fatalf("the key was touched: before %+v, after %+v", before, after)
			}
		})
	}
}

// An agent learns of its removal, and of the end of the removal, by a
// watch. With this TTL, its next poll of the key would be in an hour.
func TestRegistrarFollowsRemoval(t *testing.T) {
	t.Parallel()
	for _, k := range []instance.Key{members.Decode("10.0.0.1:8200"), {Role: instance.Both, Address: "10.0.0.2:8200"}} {
		t.Run(string(k.Role), func(t *testing.T) {
			t.Parallel()
			cli, l := etcdtest.Start(t).Client(t), members.Layout(t)
			o := members.RegistrarOptions(t, k)
			o.TTL = 5 * time.Hour
			r := members.Register(t, cli, o)
			r.Set(instance.Record{ID: "A", Models: []string{"m"}})
			members.WaitPhase(t, r, lease.Registered)
			s := store.New(cli, l, "ann")
			existed, err := s.Instances.Remove(t.Context(), k, "new disks")
			require.True(t, err == nil && existed, "%v, %v", existed, err)
			members.WaitPhase(t, r, lease.Overridden)
			assert.Contains(t, r.Status().Err, "pdctl allow")
			r.Set(instance.Record{ID: "A", State: instance.Down}) // whatever state it reports now
			for _, one := range k.Each() {
				raw := members.RawKey(t, cli, one)
				require.True(t, raw == nil, "it came back: %+v", raw)
				for _, want := range []bool{true, false} { // the second call finds no removal
					if removed, err := s.Instances.Allow(t.Context(), one, ""); err != nil || removed != want {
						t.Fatalf("%v, %v", removed, err)
					}
				}
			}
			members.WaitPhase(t, r, lease.Registered)
		})
	}
}

func TestRegistrarWaitsForFirstSet(t *testing.T) {
	t.Parallel()
	cli := etcdtest.Start(t).Client(t)
	k := members.Prefill("10.0.0.1:8100")
	r := members.Register(t, cli, members.RegistrarOptions(t, k))
	s := r.Status()
	require.True(t, s.Phase == lease.Idle && s.LeaseID == 0, "%+v", s)
	r.Set(instance.Record{ID: "A"})
	r.Set(instance.Record{ID: "A", State: instance.Draining})
	testkit.Eventually(t, members.Soon, func() error {
		if raw := members.RawKey(t, cli, k); raw == nil || !strings.Contains(string(raw.Value), "draining") {
			return fmt.Errorf("%+v", raw)
		}
		return nil
	})
	// The lease is renewed.
	members.WaitRegistration(t, r, func(s lease.Status) bool { return s.Renewals >= 2 })
}

// Similar to row 12 of the fault matrix: the lease is lost although the agent runs.
func TestRegistrarLeaseLost(t *testing.T) {
	t.Parallel()
	etcd := etcdtest.Start(t)
	cli := etcd.Client(t)
	k := members.Prefill("10.0.0.1:8100")
	var mu sync.Mutex
	var phases []lease.Phase
	o := members.RegistrarOptions(t, k)
	log, lines := test.NewNullLogger()
	o.Log = log
	o.OnEvent = func(s lease.Status) {
		mu.Lock()
		defer mu.Unlock()
		if s.Phase != lease.Unknown { // etcd may answer late on a slow machine
			phases = append(phases, s.Phase)
		}
	}
	r := members.Register(t, cli, o)
	r.Set(instance.Record{ID: "A"})
	members.WaitPhase(t, r, lease.Registered)
	first := r.Status().LeaseID
	_, err := cli.Revoke(t.Context(), clientv3.LeaseID(first))
	require.NoError(t, err)
	testkit.Eventually(t, members.Soon, func() error {
		s, raw := r.Status(), members.RawKey(t, cli, k)
		if s.LeasesLost != 1 || s.Registrations != 2 || s.LeaseID == first || raw == nil || raw.Lease != s.LeaseID {
			return fmt.Errorf("%+v, %+v", s, raw)
		}
		return nil
	})
	members.WaitPhase(t, r, lease.Registered)
	// Only a check of the key finds that it is missing.
	members.Del(t, cli, members.Layout(t).Instance(k))
	r.Set(instance.Record{ID: "A"})
	members.WaitRegistration(t, r, func(s lease.Status) bool { return s.Registrations == 3 })
	logged := slices.ContainsFunc(lines.AllEntries(), func(e *logrus.Entry) bool { return e.Message == "key was missing in etcd: registered again" })
	if !logged {
		t.Errorf("log: %+v", lines.AllEntries())
	}
	mu.Lock()
	defer mu.Unlock()
	assert.Equal(t, "[registering registered registering registered]", fmt.Sprint(slices.Compact(phases)))
}

// Fault matrix, row 21: if two agents of one host register one address,
// the later one keeps it, even if both derive the same incarnation.
func TestRegistrarTwoAgents(t *testing.T) {
	t.Parallel()
	cli := etcdtest.Start(t).Client(t)
	for i, id := range []string{"B", "A"} {
		k := members.Prefill(fmt.Sprintf("10.0.0.2:%d", 8100+i))
		first := members.Register(t, cli, members.RegistrarOptions(t, k))
		first.Set(instance.Record{ID: "A"})
		members.WaitPhase(t, first, lease.Registered)
		second := members.Register(t, cli, members.RegistrarOptions(t, k))
		second.Set(instance.Record{ID: id})
		members.WaitPhase(t, second, lease.Registered)
		first.Set(instance.Record{ID: "A", State: instance.Draining})
		members.WaitPhase(t, first, lease.Conflict)
		raw := members.RawKey(t, cli, k)
		require.True(t, raw.Lease == second.Status().LeaseID && raw.Version == 2, "%+v", raw)
	}
}

// Two hosts that start at the same moment: one gets the key, which is written once.
func TestRegistrarStartRace(t *testing.T) {
	t.Parallel()
	cli := etcdtest.Start(t).Client(t)
	for round := range 10 {
		k := members.Decode(fmt.Sprintf("10.0.0.1:%d", 8200+round))
		const n = 4
		rs := make([]*lease.Registrar, n)
		for i := range rs {
			o := members.RegistrarOptions(t, k)
			o.HostID = fmt.Sprintf("host-%d", i)
			rs[i] = members.Register(t, cli, o)
		}
		for i, r := range rs {
			r.Set(instance.Record{ID: fmt.Sprintf("id-%d", i)})
		}
		testkit.Eventually(t, members.Soon, func() error {
			won, lost := 0, 0
			for _, r := range rs {
				switch r.Status().Phase {
				case lease.Registered:
					won++
				case lease.Conflict:
					lost++
				}
			}
			if won != 1 || lost != n-1 {
				return fmt.Errorf("%d registered, %d in conflict", won, lost)
			}
			return nil
		})
		raw := members.RawKey(t, cli, k)
		require.True(t, raw.Version == 1, "written %d times: %+v", raw.Version, raw)
	}
}

// A record has not arrived while a concurrent change of the same keys
// prevents its write: an agent that drains must not revoke its lease yet.
func TestRegistrarArrivedAfterConflictingWrite(t *testing.T) {
	t.Parallel()
	server, l := etcdtest.Start(t), members.Layout(t)
	other, k := server.Client(t), members.Prefill("10.0.0.1:8100")
	var r *lease.Registrar
	var armed, failed atomic.Bool
	arrived := make(chan bool, 1) // its value when the registrar reads its keys again
	cli, err := etcd.Dial(etcd.Config{
		Endpoints: []string{server.Endpoint()},
		Intercept: func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, next grpc.UnaryInvoker, opts ...grpc.CallOption) error {
			txn, ok := req.(*pb.TxnRequest)
			switch {
			case ok && len(txn.Compare) > 0 && armed.CompareAndSwap(true, false):
				_, err := other.Put(ctx, l.Override(k), `{"v":1,"state":"drain"}`)
				assert.NoError(t, err)
				failed.Store(true)
			case ok && len(txn.Compare) == 0 && failed.CompareAndSwap(true, false):
				arrived <- r.Arrived()
			}
			return next(ctx, method, req, reply, cc, opts...)
		},
	})
	require.NoError(t, err)
	defer func() { _ = cli.Close() }()
	o := members.RegistrarOptions(t, k)
	o.TTL = time.Hour
	r = members.Register(t, cli, o)
	r.Set(instance.Record{ID: "A"})
	testkit.EventuallyTrue(t, members.Soon, r.Arrived)
	armed.Store(true)
	r.Set(instance.Record{ID: "A", State: instance.Draining})
	if <-arrived {
		t.Errorf("it has arrived, and etcd has %s", members.RawKey(t, other, k).Value)
	}
	testkit.Eventually(t, members.Soon, func() error {
		if raw := members.RawKey(t, other, k); !r.Arrived() || !strings.Contains(string(raw.Value), "draining") {
			return fmt.Errorf("%s", raw.Value)
		}
		return nil
	})
}

func TestRegistrarEnds(t *testing.T) {
	t.Parallel()
	cli := etcdtest.Start(t).Client(t)
	k := members.Prefill("10.0.0.1:8100")

	// A cancelled context leaves the key in etcd.
	r := lease.NewRegistrar(cli, members.RegistrarOptions(t, k))
	stop := background.Start(t.Context(), r.Run)
	r.Set(instance.Record{ID: "A"})
	members.WaitPhase(t, r, lease.Registered)
	stop()
	require.True(t, members.RawKey(t, cli, k) != nil, "the key went with the context")
	// Revoke deletes the key, also after Run; a second call is harmless.
	for range 2 {
		require.NoError(t, r.Revoke(t.Context()))
	}
	raw := members.RawKey(t, cli, k)
	require.True(t, raw == nil && r.Status().Phase == lease.Idle, "%+v %+v", raw, r.Status())
	// A revoked registrar does not register again.
	r.Run(t.Context())
	// Revoke before Run.
	require.NoError(t, lease.NewRegistrar(cli, members.RegistrarOptions(t, k)).Revoke(t.Context()))
}

func TestRegistrar_RefusesUnreadable(t *testing.T) {
	t.Parallel()
	cli := etcdtest.Start(t).Client(t)
	k := members.Prefill("10.0.0.1:8100")
	r := members.Register(t, cli, members.RegistrarOptions(t, k))
	r.Set(instance.Record{ID: "A", Address: "10.0.0.1:9"})
	members.WaitRegistration(t, r, func(s lease.Status) bool { return s.Phase == lease.Registering && strings.Contains(s.Err, "port") })
	members.Put(t, cli, members.Layout(t).Schema(), `{"v":2}`)
	r.Set(instance.Record{ID: "A"})
	members.WaitRegistration(t, r, func(s lease.Status) bool { return strings.Contains(s.Err, "upgrade") })
	members.Put(t, cli, members.Layout(t).Schema(), `{"v":1,"more":true}`)
	members.WaitPhase(t, r, lease.Registered)
}

func TestMain(m *testing.M) {
	leak.Main(m)
}

// If etcd takes longer to answer than the first deadline of a
// renewal, the deadline is extended and the lease is kept.
func TestRenewalOfASlowEtcd(t *testing.T) {
	t.Parallel()
	etcd := etcdtest.Start(t)
	link := testkit.StartLink(t, etcd.Endpoint())
	o := members.RegistrarOptions(t, members.Prefill("10.0.0.1:8100"))
	o.TTL = 15 * time.Second
	r := members.Register(t, members.Dial(t, link.Address()), o)
	r.Set(instance.Record{ID: "A", Models: []string{"m"}})
	members.WaitPhase(t, r, lease.Registered)
	before := r.Status()
	link.Delay(1250 * time.Millisecond) // each way: more than the first deadline of a renewal
	testkit.Eventually(t, time.Minute, func() error {
		s := r.Status()
		require.True(t, s.LeasesLost <= 0, "the lease was lost: %+v", s)
		if s.Renewals < before.Renewals+2 { // one may have been in flight
			return fmt.Errorf("%+v", s)
		}
		return nil
	})
	assert.Equal(t, before.LeaseID, r.Status().LeaseID, "before %+v", before)
}
