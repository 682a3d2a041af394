package admin_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/pdmesh/pdmesh/internal/discovery/schema"
	"github.com/pdmesh/pdmesh/internal/discovery/store"
	"github.com/pdmesh/pdmesh/internal/discovery/watch"
	"github.com/pdmesh/pdmesh/internal/engine/vllm"
	"github.com/pdmesh/pdmesh/internal/httpapi"
	"github.com/pdmesh/pdmesh/internal/httpapi/admin"
	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/internal/transport/netguard"
	"github.com/pdmesh/pdmesh/sim/fakevllm"
	"github.com/pdmesh/pdmesh/sim/testkit"
	"github.com/pdmesh/pdmesh/sim/testkit/etcdtest"
	"github.com/pdmesh/pdmesh/sim/testkit/leak"
	"github.com/pdmesh/pdmesh/sim/testkit/members"
)

func TestMain(m *testing.M) { leak.Main(m) }

type rig struct {
	svc     *admin.Service
	options admin.Service // options of svc
	watcher *watch.Watcher
	etcd    *etcdtest.Server
}

func start(t *testing.T, model string, guard netguard.Policy) *rig {
	t.Helper()
	etcd := etcdtest.Start(t)
	cli := etcd.Client(t)
	l := members.Layout(t)
	prober := vllm.New("")
	prober.Timeout = time.Minute
	w := watch.New(cli, watch.Options{Layout: l, Writer: store.New(cli, l, "watcher").Watch, Prober: prober, WaitingInterval: 20 * time.Millisecond})
	members.Run(t, w.Run)
	<-w.Ready()
	st := store.New(cli, l, "test")
	o := admin.Service{Store: st, Members: w, Prober: prober, Guard: guard, Model: model, Proxies: func() []string { return nil }}
	return &rig{watcher: w, etcd: etcd, options: o, svc: &o}
}

// add adds a decode instance.
func (r *rig) add(t *testing.T) instance.Key {
	t.Helper()
	k := key(fakevllm.StartTest(t, fakevllm.Options{Models: []string{"m"}, Mode: fakevllm.NIXL}).Address())
	outcome, err := r.svc.Add(t.Context(), k, 4)
	require.NoError(t, err)
	require.Equal(t, httpapi.Added, outcome)
	return k
}

func key(address string) instance.Key {
	return instance.Key{Role: instance.Decode, Address: address}
}

func TestAddAndRemove(t *testing.T) {
	t.Parallel()
	r := start(t, "", netguard.Policy{})
	k := r.add(t)
	// Add returns once this proxy's snapshot contains the instance.
	in, ok := r.watcher.Snapshot().Lookup(k)
	if !ok || !in.Usable() || !in.Static() || in.Record.Source != "admin" || in.Record.Transfer != instance.TransferNIXL || !in.ServesModel("m") || in.Ranks() != 4 {
		t.Fatalf("instance %+v", in)
	}
	outcome, err := r.svc.Add(t.Context(), k, 0)
	require.True(t, err == nil && outcome == httpapi.Already, "second Add: %v, %v", outcome, err)
	existed, err := r.svc.Remove(t.Context(), k)
	require.True(t, err == nil && existed, "Remove: %v, %v", existed, err)
	in, ok = r.watcher.Snapshot().Lookup(k)
	require.False(t, ok && in.Usable(), "still usable: %+v", in)
	existed, err = r.svc.Remove(t.Context(), key("127.0.0.1:9"))
	require.True(t, err == nil && !existed, "Remove of an unknown one: %v, %v", existed, err)
	outcome, err = r.svc.Add(t.Context(), k, 0)
	require.True(t, err == nil && outcome == httpapi.Added, "Add after Remove: %v, %v", outcome, err)
}

func TestAdd_Pending(t *testing.T) {
	t.Parallel()
	r := start(t, "", netguard.Policy{})
	address := testkit.FreePort(t)
	outcome, err := r.svc.Add(t.Context(), key(address), 0)
	require.NoError(t, err)
	require.Equal(t, httpapi.Waiting, outcome)
	// Both calls return once this proxy's list contains the change.
	assert.True(t, r.watcher.Snapshot().Waiting(key(address)), "the list does not show the one that is waited for")
	if existed, err := r.svc.Remove(t.Context(), key(address)); err != nil || !existed {
		t.Fatalf("Remove: %v, %v", existed, err)
	}
	assert.False(t, r.watcher.Snapshot().Waiting(key(address)), "the list still shows one that was removed")
	outcome, err = r.svc.Add(t.Context(), key(address), 2)
	require.True(t, err == nil && outcome == httpapi.Waiting, "Add after Remove: %v, %v", outcome, err)
	fakevllm.StartTest(t, fakevllm.Options{Addr: address})
	members.WaitFor(t, r.watcher, key(address), members.Is(func(in *instance.Instance) bool { return in.Usable() && in.Ranks() == 2 }))
}

// Two proxies with separate instances wait for the same instance. If one withdraws its
// add, the other one still waits; a proxy that does not wait cannot end the wait.
func TestRemoveOfASharedWait(t *testing.T) {
	t.Parallel()
	for _, role := range []instance.Role{instance.Decode, instance.Both} {
		t.Run(string(role), func(t *testing.T) {
			t.Parallel()
			r := start(t, "", netguard.Policy{})
			service := func(proxy string) *admin.Service {
				o := r.options
				o.Proxies = func() []string { return []string{proxy} }
				return &o
			}
			one, two, three := service("127.0.0.1:8000"), service("127.0.0.1:9000"), service("127.0.0.1:7000")
			k := instance.Key{Role: role, Address: testkit.FreePort(t)}
			for _, svc := range []*admin.Service{one, two} {
				outcome, err := svc.Add(t.Context(), k, 0)
				require.True(t, err == nil && outcome == httpapi.Waiting, "Add: %v, %v", outcome, err)
			}
			testkit.Eventually(t, time.Minute, func() error {
				for _, one := range k.Each() {
					if in, ok := r.watcher.Snapshot().Pending(one); !ok || len(in.Record.Proxies) != 2 {
						return fmt.Errorf("%s is not shared", one)
					}
				}
				return nil
			})
			for _, c := range []struct {
				name    string
				svc     *admin.Service
				existed bool
				waits   bool
			}{{"one of two", one, true, true}, {"again", one, false, true}, {"another", three, false, true}, {"the last", two, true, false}} {
				existed, err := c.svc.Remove(t.Context(), k)
				assert.True(t, err == nil && existed == c.existed, "%s: %t, %v", c.name, existed, err)
				testkit.Eventually(t, time.Minute, func() error {
					for _, one := range k.Each() {
						if r.watcher.Snapshot().Waiting(one) != c.waits {
							return fmt.Errorf("%s: %s waits: %t", c.name, one, !c.waits)
						}
					}
					return nil
				})
			}
		})
	}
}

// lagging is a membership that is behind etcd.
type lagging struct{ snapshot *instance.Snapshot }

func (l lagging) Snapshot() *instance.Snapshot { return l.snapshot }

// A removed instance is added through a proxy that does not know about the
// removal yet. It does not respond, so the add must be pending in etcd.
func TestAddThroughALaggingProxy(t *testing.T) {
	t.Parallel()
	etcd := etcdtest.Start(t)
	l := members.Layout(t)
	k := key(testkit.FreePort(t))
	st := store.New(etcd.Client(t), l, "test")
	svc := &admin.Service{
		Store: st, Prober: vllm.New(""), Proxies: func() []string { return nil },
		Members: lagging{instance.NewSnapshot(1, []*instance.Instance{{Key: k, Verified: true}})},
	}
	outcome, err := svc.Add(t.Context(), k, 0)
	require.NoError(t, err)
	assert.Equal(t, httpapi.Waiting, outcome)
	resp, err := etcd.Client(t).Get(t.Context(), l.Pending(k))
	require.NoError(t, err, "the pending add in etcd")
	assert.Len(t, resp.Kvs, 1, "the pending add in etcd")
}

func TestAddRefuses(t *testing.T) {
	t.Parallel()
	r := start(t, "wanted", netguard.New([]netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}))
	other := fakevllm.StartTest(t, fakevllm.Options{Models: []string{"other"}}).Address()
	for _, tc := range []struct {
		name, address, says string
		mark                error
	}{
		{"wrong model", other, "other", httpapi.ErrRefused},
		{"outside the allowed networks", "192.0.2.1:80", "--instance-allow", httpapi.ErrRefused},
		{"a proxy", aProxy(t), "is a pdmesh proxy", httpapi.ErrRefused},
		{"metadata service", "169.254.169.254:80", "link-local", httpapi.ErrRefused},
	} {
		t.Run(tc.name, func(t *testing.T) {
			_, err := r.svc.Add(t.Context(), key(tc.address), 0)
			require.True(t, errors.Is(err, tc.mark) && strings.Contains(err.Error(), tc.says), "%v", err)
			require.Equal(t, 0, len(r.watcher.Snapshot().All()), "entries were written")
		})
	}
}

// aProxy starts a server that responds to probes as a proxy does.
func aProxy(t *testing.T) string {
	t.Helper()
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		assert.NotEqual(t, "", req.Header.Get(instance.ProbeHeader), "a question without %s", instance.ProbeHeader)
		w.WriteHeader(http.StatusLoopDetected)
	}))
	t.Cleanup(srv.Close)
	return strings.TrimPrefix(srv.URL, "http://")
}

func TestEtcdUnavailable(t *testing.T) {
	t.Parallel()
	r := start(t, "", netguard.Policy{})
	k := key(fakevllm.StartTest(t, fakevllm.Options{}).Address())
	r.etcd.Kill()
	_, err := r.svc.Add(t.Context(), k, 0)
	require.ErrorIs(t, err, httpapi.ErrUnavailable, "Add")
	_, err = r.svc.Remove(t.Context(), k)
	require.ErrorIs(t, err, httpapi.ErrUnavailable, "Remove")
	r.etcd.Restart()
	testkit.Eventually(t, time.Minute, func() error {
		_, err := r.svc.Add(t.Context(), k, 0)
		return err
	})
}

// An intent is in this proxy's snapshot when the call returns.
func TestChangeIntent(t *testing.T) {
	t.Parallel()
	r := start(t, "", netguard.Policy{})
	k := r.add(t)
	weight, last := 0, int64(1)
	for _, tc := range []struct {
		change httpapi.IntentChange
		intent instance.Intent
		weight int
	}{
		{httpapi.IntentChange{Verb: httpapi.Drain, Reason: "disks"}, instance.Drain, 100},
		{httpapi.IntentChange{Verb: httpapi.Undrain}, "", 100},
		{httpapi.IntentChange{Verb: httpapi.Undrain}, "", 100}, // changes nothing
		{httpapi.IntentChange{Verb: httpapi.Cordon, For: time.Hour}, instance.Cordon, 100},
		{httpapi.IntentChange{Verb: httpapi.Uncordon}, "", 100},
		{httpapi.IntentChange{Verb: httpapi.SetWeight, Weight: &weight}, "", 0},
		{httpapi.IntentChange{Verb: httpapi.SetWeight}, "", 100},
	} {
		done, err := r.svc.ChangeIntent(t.Context(), k, tc.change)
		require.True(t, err == nil && done.Known && done.Revision >= last,
			"%s: %+v after revision %d, %v", tc.change.Verb, done, last, err)
		last = done.Revision
		in, ok := r.watcher.Snapshot().Lookup(k)
		assert.True(t, ok && in.Intent == tc.intent && in.Weight() == tc.weight, "%s: %+v", tc.change.Verb, in)
	}
	if done, err := r.svc.ChangeIntent(t.Context(), key("127.0.0.1:9"), httpapi.IntentChange{Verb: httpapi.Drain}); err != nil || done.Known {
		t.Errorf("of an unknown one: %+v, %v", done, err)
	}
	_, err := r.svc.Remove(t.Context(), k)
	require.NoError(t, err)
	_, err = r.svc.ChangeIntent(t.Context(), k, httpapi.IntentChange{Verb: httpapi.Drain})
	assert.ErrorIs(t, err, httpapi.ErrRefused, "of a removed one")
}

// A misspelled field of a model route would otherwise be ignored: the target would have another weight, or the
// route no end.
func TestSetModelRoute_UnknownFields(t *testing.T) {
	t.Parallel()
	r := start(t, "", netguard.Policy{})
	set := func(body string) error {
		_, err := r.svc.SetModelRoute(t.Context(), "chat", []byte(body), 0)
		return err
	}
	for body, want := range map[string]string{
		`{"targets":[{"model":"m","wieght":10}]}`:            `unknown field "wieght"`,
		`{"targets":[{"model":"m"}],"fro":"1h"}`:             `unknown field "fro"`,
		`{"targets":[{"model":"m"}],"Sticky":"none"}`:        `unknown field "Sticky"`,
		`{"targets":[{"model":"m"},{"model":"n","model":0}]`: "unexpected end",
	} {
		err := set(body)
		require.ErrorIs(t, err, httpapi.ErrRefused, body)
		require.ErrorContains(t, err, want, body)
	}
	require.NoError(t, set(`{"v":1,"targets":[{"model":"m","weight":10}],"sticky":"none","reason":"trial","for":"1h"}`))
	route, err := json.Marshal(schema.ListModelRoute(r.watcher.Snapshot().Documents.List[0], nil)) // the answer to a GET
	require.NoError(t, err)
	require.NoError(t, set(string(route)))
}

// The role of an orphan, which no longer has a key, cannot be set.
func TestRoleOfOrphan(t *testing.T) {
	t.Parallel()
	r := start(t, "", netguard.Policy{})
	cli := r.etcd.Client(t)
	k := key(fakevllm.StartTest(t, fakevllm.Options{Models: []string{"m"}, Mode: fakevllm.NIXL}).Address())
	id := members.Lease(t, cli, 60)
	members.Put(t, cli, "/pd/decode/"+k.Address, `{"models":["m"]}`, clientv3.WithLease(id))
	members.WaitFor(t, r.watcher, k, members.HasView(""))
	members.Revoke(t, cli, id)
	members.WaitFor(t, r.watcher, k, members.HasView(instance.Orphan))
	if done, err := r.svc.ChangeIntent(t.Context(), k, httpapi.IntentChange{Verb: httpapi.SetRole}); !errors.Is(err, httpapi.ErrRefused) {
		t.Errorf("%+v, %v", done, err)
	}
}

// A change of both roles is refused for an engine with one role: it would write the other role, too.
func TestBoth_EngineOfOneRole(t *testing.T) {
	t.Parallel()
	r := start(t, "", netguard.Policy{})
	k := r.add(t)
	both := instance.Key{Role: instance.Both, Address: k.Address}
	if existed, err := r.svc.Remove(t.Context(), both); !errors.Is(err, httpapi.ErrRefused) || existed {
		t.Errorf("Remove: %t, %v", existed, err)
	}
	for _, verb := range []httpapi.Verb{httpapi.Drain, httpapi.Cordon, httpapi.SetWeight} {
		if done, err := r.svc.ChangeIntent(t.Context(), both, httpapi.IntentChange{Verb: verb, Weight: new(int)}); !errors.Is(err, httpapi.ErrRefused) {
			t.Errorf("%s: %+v, %v", verb, done, err)
		}
	}
	in, ok := r.watcher.Snapshot().Lookup(k)
	assert.True(t, ok && in.Usable() && in.Weight() == 100, "%+v", in)
}

// A lagging proxy reads from etcd, not from its snapshot, whether
// other proxies use the instance that it should remove.
func TestRemoveThroughALaggingProxy(t *testing.T) {
	t.Parallel()
	const own, other = "127.0.0.1:8000", "127.0.0.1:9000"
	for _, role := range []instance.Role{instance.Decode, instance.Both} {
		for _, tc := range []struct {
			name    string
			proxies []string
			existed bool
			left    []string // nil: removed
		}{
			{"shared", []string{own, other}, true, []string{other}},
			{"of another proxy", []string{other}, false, []string{other}},
			{"its own", []string{own}, true, nil},
			{"of all proxies", nil, true, nil},
		} {
			t.Run(string(role)+" "+tc.name, func(t *testing.T) {
				t.Parallel()
				cli, l := etcdtest.Start(t).Client(t), members.Layout(t)
				st := store.New(cli, l, "test")
				k := instance.Key{Role: role, Address: "10.0.0.1:8200"}
				_, err := st.Instances.Add(t.Context(), k, instance.Record{Models: []string{"m"}, Proxies: tc.proxies},
					"")
				require.NoError(t, err)
				svc := &admin.Service{
					Store: st, Prober: vllm.New(""), Proxies: func() []string { return []string{own} }, Members: lagging{instance.NewSnapshot(1, nil)},
				}
				if existed, err := svc.Remove(t.Context(), k); err != nil || existed != tc.existed {
					t.Errorf("Remove: %t, %v", existed, err)
				}
				snap, err := st.Reader.Snapshot(t.Context())
				require.NoError(t, err)
				for _, one := range k.Each() {
					in, ok := snap.Lookup(one)
					assert.True(t, ok == (tc.left != nil) && (!ok || slices.Equal(in.Record.Proxies, tc.left)),
						"%s: %v, want proxies %v", one, in, tc.left)
				}
			})
		}
	}
}
