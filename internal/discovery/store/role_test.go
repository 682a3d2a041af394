package store_test

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/pdmesh/pdmesh/internal/discovery/schema"
	"github.com/pdmesh/pdmesh/internal/discovery/store"
	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/sim/testkit"
	"github.com/pdmesh/pdmesh/sim/testkit/etcdtest"
	"github.com/pdmesh/pdmesh/sim/testkit/members"
)

// roleRig is an etcd with three engines in both roles.
type roleRig struct {
	t   *testing.T
	cli *clientv3.Client
	st  *store.Store
}

var roleEngines = []string{"127.0.0.1:8101", "127.0.0.1:8102", "127.0.0.1:8103"}

func newRoleRig(t *testing.T) *roleRig {
	t.Helper()
	cli, l := etcdtest.Start(t).Client(t), members.Layout(t)
	for _, address := range roleEngines {
		for _, k := range (instance.Key{Role: instance.Both, Address: address}).Each() {
			members.Put(t, cli, l.Instance(k), `{"models":["m"]}`)
		}
	}
	return &roleRig{t, cli, store.New(cli, l, "ann")}
}

// roles returns the roles of each engine, in the order of roleEngines: p, d, pd, or "".
func (r *roleRig) roles() string {
	r.t.Helper()
	snap, err := r.st.Reader.Snapshot(r.t.Context())
	require.NoError(r.t, err)
	var out []string
	for _, address := range roleEngines {
		is := ""
		for _, k := range (instance.Key{Role: instance.Both, Address: address}).Each() {
			if in, ok := snap.Lookup(k); ok && in.Usable() {
				is += string(k.Role)[:1]
			}
		}
		out = append(out, is)
	}
	return strings.Join(out, " ")
}

func (r *roleRig) set(at int, role instance.Role, o store.IntentOptions) (store.IntentResult, error) {
	return r.st.Intents.SetRole(r.t.Context(), roleEngines[at], role, o)
}

func TestSetRole(t *testing.T) {
	t.Parallel()
	r := newRoleRig(t)
	step := func(at int, role instance.Role, o store.IntentOptions, want string) store.IntentResult {
		t.Helper()
		done, err := r.set(at, role, o)
		require.NoError(t, err)
		require.Equal(t, want, r.roles(), "%s of %d", role, at)
		return done
	}
	refused := func(at int, role instance.Role, o store.IntentOptions, says string) {
		t.Helper()
		was := r.roles()
		if done, err := r.set(at, role, o); !errors.Is(err, store.ErrIntent) || !strings.Contains(err.Error(), says) || done.Changed {
			t.Fatalf("%s of %d: %+v, %v", role, at, done, err)
		}
		got := r.roles()
		require.Equal(t, was, got, "a refused change made %q of %q", got, was)
	}
	step(0, instance.Decode, store.IntentOptions{Reason: "night"}, "d pd pd")
	snap, err := r.st.Reader.Snapshot(t.Context())
	require.NoError(t, err)
	in, _ := snap.Lookup(instance.Key{Role: instance.Prefill, Address: roleEngines[0]})
	if in.Status() != "decode-only" || in.Intent != instance.Drain || in.Reason != "role decode by ann: night" {
		t.Errorf("shown as %s, %s: %s", in.Status(), in.Intent, in.Reason)
	}
	done := step(0, instance.Decode, store.IntentOptions{}, "d pd pd")
	assert.False(t, done.Changed, "again: %+v", done)
	step(0, instance.Prefill, store.IntentOptions{}, "p pd pd") // one transaction, both keys
	step(0, instance.Both, store.IntentOptions{}, "pd pd pd")
	step(0, instance.Decode, store.IntentOptions{}, "d pd pd")
	step(1, instance.Decode, store.IntentOptions{}, "d d pd")
	refused(2, instance.Decode, store.IntentOptions{}, "no other usable prefill instance serves m")
	step(2, instance.Decode, store.IntentOptions{Force: true}, "d d d")
	refused(2, instance.Prefill, store.IntentOptions{Fits: func(k instance.Key, _ instance.Record) error {
		return errors.New("a fixed " + string(k.Role))
	}}, "a fixed prefill")
	step(2, instance.Prefill, store.IntentOptions{}, "d d p")

	// An operator's drain is never overwritten, and it replaces the mark of the role change.
	k := instance.Key{Role: instance.Decode, Address: roleEngines[1]}
	_, err = r.st.Intents.Intend(t.Context(), k, instance.Cordon, store.IntentOptions{})
	require.NoError(t, err)
	refused(1, instance.Prefill, store.IntentOptions{}, "uncordon lifts that")
	refused(1, instance.Both, store.IntentOptions{}, "uncordon lifts that")
	_, err = r.st.Intents.Intend(t.Context(), instance.Key{Role: instance.Prefill, Address: roleEngines[0]},
		instance.Drain, store.IntentOptions{})
	require.NoError(t, err)
	refused(0, instance.Prefill, store.IntentOptions{}, "undrain lifts that")

	// With weight 0 in its remaining role, an engine would get no requests at all.
	zero := 0
	for _, role := range instance.Roles() {
		k := instance.Key{Role: role, Address: roleEngines[2]}
		step(2, instance.Both, store.IntentOptions{}, "d  pd")
		if _, err := r.st.Intents.SetWeight(t.Context(), k, &zero, store.IntentOptions{}); err != nil {
			t.Fatal(err)
		}
		refused(2, role, store.IntentOptions{Force: true}, k.String()+" has weight 0 and would get no requests; change its weight first")
		step(2, role.Other(), store.IntentOptions{Force: true}, "d  "+string(role.Other())[:1])
		step(2, instance.Both, store.IntentOptions{}, "d  "+string(role.Other())[:1])
		if _, err := r.st.Intents.SetWeight(t.Context(), k, nil, store.IntentOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	members.Put(t, r.cli, members.Layout(t).Instance(members.Prefill(roleEngines[2])), `{"models":["m"],"weight":0}`)
	refused(2, instance.Prefill, store.IntentOptions{}, "has weight 0")

	// One role only.
	members.Put(t, r.cli, members.Layout(t).Instance(instance.Key{Role: instance.Decode, Address: "127.0.0.1:9"}), members.Ready)
	if _, err := r.st.Intents.SetRole(t.Context(), "127.0.0.1:9", instance.Prefill, store.IntentOptions{}); !errors.Is(err, store.ErrIntent) ||
		!strings.Contains(err.Error(), "is registered as decode only") {
		t.Errorf("of one role: %v", err)
	}
	log, err := r.st.Reader.AuditLog(t.Context(), 0)
	require.NoError(t, err)
	if e := log[len(log)-1]; e.What != "role decode" || e.Why != "night" || e.Role != instance.Both || e.Who != "ann" {
		t.Errorf("audit: %+v", e)
	}
}

// The last instance of a role is the last one that proxies use. They publish the
// models of a record without models, and whether they have ejected a ready one.
func TestSetRoleSeenByProxies(t *testing.T) {
	t.Parallel()
	etcd := etcdtest.Start(t)
	const engine, other = "127.0.0.1:8101", "127.0.0.1:8102"
	const listed, unlisted = `{"models":["m"]}`, `{}`
	const old = `{"v":1,"applied":1000000,"unverified":null,"instances":null}`
	proxy := func(instances string) string {
		return `{"v":1,"applied":1000000,"unverified":{},"instances":{` + instances + `}}`
	}
	const has, otherHas, ejected = `"prefill/` + engine + `":{"models":["m"]}`, `"prefill/` + other + `":{"models":["m"]}`, `"prefill/` + other + `":{"view":"ejected","reason":"down"}`
	for i, tc := range []struct {
		name          string
		record, other string // "": no other prefill instance
		proxies       []string
		want          string // "": the change succeeds
	}{
		{"models unknown, last", unlisted, "", nil, "no other usable prefill instance"},
		{"models unknown", unlisted, listed, nil, ""},
		{"models of the proxy, last", unlisted, `{"models":["n"]}`, []string{proxy(has)}, "no other usable prefill instance serves m"},
		{"other one ejected", listed, listed, []string{proxy(ejected), proxy(ejected)}, "no other usable prefill instance serves m"},
		{"other one verified", listed, unlisted, []string{proxy(otherHas)}, ""},
		{"both verified", unlisted, unlisted, []string{proxy(has + "," + otherHas)}, ""},
		{"other one not verified", listed, unlisted, []string{strings.Replace(proxy(""), "{}", `{"prefill/`+other+`":"silent"}`, 1)}, "no other usable prefill instance serves m"},
		{"older release", listed, listed, []string{old}, ""},
		{"older release, other one verified", listed, unlisted, []string{old, proxy(otherHas)}, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			l, err := schema.NewLayout(fmt.Sprintf("/pd%d", i))
			require.NoError(t, err)
			cli := etcd.Client(t)
			for _, k := range (instance.Key{Role: instance.Both, Address: engine}).Each() {
				members.Put(t, cli, l.Instance(k), tc.record)
			}
			if tc.other != "" {
				members.Put(t, cli, l.Instance(members.Prefill(other)), tc.other)
			}
			for i, value := range tc.proxies {
				members.Put(t, cli, l.Proxy(fmt.Sprint(i)), value)
			}
			_, err = store.New(cli, l, "ann").Intents.SetRole(t.Context(), engine, instance.Decode, store.IntentOptions{})
			if tc.want == "" && err != nil || tc.want != "" && (!errors.Is(err, store.ErrIntent) || !strings.HasSuffix(err.Error(), tc.want)) {
				t.Errorf("%v, want %q", err, tc.want)
			}
		})
	}
}

// Ending a role by undrain and changing a role by an edit count as role changes; changes of weights do not.
func TestRoleMoves_OtherChanges(t *testing.T) {
	t.Parallel()
	r := newRoleRig(t)
	override := "override/prefill/" + roleEngines[0]
	marked, weighed, weight := `{"v":1,"state":"drain","role":"decode"}`, `{"v":1,"state":"drain","role":"decode","weight":50}`, `{"v":1,"weight":50}`
	drained := `{"v":1,"state":"drain"}`
	write := func(f *store.Fleet, values map[string]*string) error {
		_, err := r.st.Edits.Write(t.Context(), f, values, "apply", "")
		return err
	}
	read := func() *store.Fleet {
		t.Helper()
		f, err := r.st.Edits.Read(t.Context())
		require.NoError(t, err)
		return f
	}
	last := int64(0)
	for _, step := range []struct {
		name  string
		do    func() error
		moved bool
	}{
		{"written", func() error { return write(read(), map[string]*string{override: &marked}) }, true},
		{"weight", func() error { return write(read(), map[string]*string{override: &weighed}) }, false},
		{"replaced by a weight", func() error { return write(read(), map[string]*string{override: &weight}) }, true},
		{"drained", func() error { return write(read(), map[string]*string{override: &drained}) }, false},
		{"undrained", func() error {
			_, err := r.st.Intents.Lift(t.Context(), members.Prefill(roleEngines[0]), instance.Drain, "")
			return err
		}, false},
		{"role", func() error { _, err := r.set(0, instance.Decode, store.IntentOptions{}); return err }, true},
		{"undrained", func() error {
			_, err := r.st.Intents.Lift(t.Context(), members.Prefill(roleEngines[0]), instance.Drain, "")
			return err
		}, true},
		{"role", func() error { _, err := r.set(0, instance.Decode, store.IntentOptions{}); return err }, true},
		{"deleted", func() error { return write(read(), map[string]*string{override: nil}) }, true},
		{"in two parts", func() error {
			f := read()
			return errors.Join(write(f, map[string]*string{override: &marked}), write(f, map[string]*string{"override/prefill/" + roleEngines[1]: &marked}))
		}, true},
	} {
		require.NoError(t, step.do(), step.name)
		is, err := r.st.Intents.LastMove(t.Context())
		require.NoError(t, err)
		assert.Equal(t, step.moved, is > last, "%s: last move at %d, was %d", step.name, is, last)
		last = is
	}
	log, err := r.st.Reader.AuditLog(t.Context(), 0)
	require.NoError(t, err)
	assert.Equal(t, "undrain", log[4].What, "audit")

	// Another role has changed since the edit was prepared.
	f := read()
	_, err = r.set(0, instance.Both, store.IntentOptions{})
	require.NoError(t, err)
	err = write(f, map[string]*string{"override/prefill/" + roleEngines[1]: nil})
	assert.True(t, errors.Is(err, store.ErrConflict) && errors.Is(err, store.ErrMoved), "%v", err)
	assert.Equal(t, "pd d pd", r.roles())
}

// A role change can be reverted even if the engine is absent or registered in one role.
func TestSetRoleBothWithoutRecords(t *testing.T) {
	t.Parallel()
	r := newRoleRig(t)
	l := members.Layout(t)
	for at, missing := range [][]instance.Role{{instance.Prefill, instance.Decode}, {instance.Prefill}, {instance.Decode}} {
		for _, role := range instance.Roles() {
			_, err := r.set(at, role, store.IntentOptions{Force: true})
			require.NoError(t, err)
			for _, role := range missing {
				members.Del(t, r.cli, l.Instance(instance.Key{Role: role, Address: roleEngines[at]}))
			}
			if done, err := r.set(at, instance.Both, store.IntentOptions{}); err != nil || !done.Changed {
				t.Errorf("%s of %d without %v: %+v, %v", role, at, missing, done, err)
			}
			done, err := r.set(at, instance.Both, store.IntentOptions{})
			if one := len(missing) == 1; done.Known || done.Changed || one != (err != nil) || one && !strings.Contains(err.Error(), "is registered as "+string(missing[0].Other())+" only") {
				t.Errorf("%d again: %+v, %v", at, done, err)
			}
			for _, role := range missing {
				members.Put(t, r.cli, l.Instance(instance.Key{Role: role, Address: roleEngines[at]}), `{"models":["m"]}`)
			}
		}
	}
}

// A temporary change ends without a further command.
func TestSetRole_Temporary(t *testing.T) {
	t.Parallel()
	r := newRoleRig(t)
	_, err := r.set(0, instance.Decode, store.IntentOptions{For: 2 * time.Second})
	require.NoError(t, err)
	testkit.EventuallyEqual(t, time.Minute, r.roles, "pd pd pd")
}

// Concurrent changes never leave an engine without a role, nor a role without an engine.
func TestSetRole_Concurrent(t *testing.T) {
	t.Parallel()
	r := newRoleRig(t)
	for round := range 5 {
		var wg sync.WaitGroup
		for i := range 6 {
			wg.Go(func() {
				role, at := instance.Roles()[(i+round)%2], i%3
				if round%2 == 0 {
					role = instance.Decode // of all three
				}
				_, err := r.set(at, role, store.IntentOptions{})
				assert.False(t, err != nil && !errors.Is(err, store.ErrIntent) && !errors.Is(err, store.ErrBusy), err)
			})
		}
		wg.Wait()
		got := r.roles()
		require.True(t, strings.Contains(got, "p") && strings.Contains(got, "d") && len(strings.Fields(got)) == 3,
			"round %d: %q", round, got)
	}
}

// If two proxies decide on the same state, only one changes a
// role. Neither changes a role that an operator has set.
func TestSetRoleAutomatic(t *testing.T) {
	t.Parallel()
	r := newRoleRig(t)
	since, err := r.st.Intents.LastMove(t.Context())
	if err != nil || since != 0 {
		t.Fatal(since, err)
	}
	var wg sync.WaitGroup
	var done [2]store.IntentResult
	var errs [2]error
	for i := range 2 {
		wg.Go(func() {
			done[i], errs[i] = r.set(i, instance.Decode, store.IntentOptions{Auto: true, Since: &since})
		})
	}
	wg.Wait()
	require.True(t, done[0].Changed != done[1].Changed && errors.Is(errors.Join(errs[0], errs[1]), store.ErrMoved),
		"%+v, %v", done, errs)
	since, err = r.st.Intents.LastMove(t.Context())
	assert.True(t, err == nil && since == max(done[0].Revision, done[1].Revision), "last move at %d: %v", since, err)
	_, err = r.set(2, instance.Decode, store.IntentOptions{})
	require.NoError(t, err)
	since, err = r.st.Intents.LastMove(t.Context())
	require.NoError(t, err)
	_, err = r.set(2, instance.Prefill, store.IntentOptions{Auto: true, Since: &since})
	assert.ErrorContains(t, err, "an operator has set the role")
}
