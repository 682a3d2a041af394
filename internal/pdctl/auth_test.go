package pdctl_test

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/sirupsen/logrus"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/pdmesh/pdmesh/internal/cli/background"
	"github.com/pdmesh/pdmesh/internal/discovery/etcd"
	"github.com/pdmesh/pdmesh/internal/discovery/lease"
	"github.com/pdmesh/pdmesh/internal/discovery/loaddigest"
	"github.com/pdmesh/pdmesh/internal/discovery/schema"
	"github.com/pdmesh/pdmesh/internal/discovery/store"
	"github.com/pdmesh/pdmesh/internal/discovery/watch"
	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/internal/pdctl"
	"github.com/pdmesh/pdmesh/sim/testkit"
	"github.com/pdmesh/pdmesh/sim/testkit/members"
)

// withUsers is an etcd after "auth init". as returns a client of a user.
func withUsers(t *testing.T) (r *rig, as func(user string) *clientv3.Client) {
	t.Helper()
	r = newRig(t)
	for _, key := range []string{"mooncake/segment", "mooncake-store/x", "/oplog/1", "/pd-other/decode/10.0.0.1:1", "foreign"} {
		members.Put(t, r.cli, key, "theirs")
	}
	file := filepath.Join(t.TempDir(), "proxy.pass")
	testkit.WriteFile(t, file, "from a file\n")
	out := r.ok("auth", "init", "--apply", "--password-file", "pd-proxy="+file)
	passwords := map[string]string{"pd-proxy": "from a file"}
	for _, m := range regexp.MustCompile(`(?m)^(\S+): password (\S+)$`).FindAllStringSubmatch(out, -1) {
		passwords[m[1]] = m[2]
	}
	require.Len(t, passwords, 5, "passwords of users in")
	require.NotContains(t, out, "from a file")
	return r, func(user string) *clientv3.Client {
		t.Helper()
		cli := members.DialWith(t, etcd.Config{Endpoints: []string{r.etcd.Endpoint()}, Username: user, Password: passwords[user]})
		return cli
	}
}

// Each user can write its own keys and read the keys it depends on, and nothing else.
func TestUsers_Permissions(t *testing.T) {
	t.Parallel()
	_, as := withUsers(t)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	type right int
	const (
		nothing right = iota
		reads
		writes
	)
	keys := []string{
		"/pd/prefill/10.0.0.1:1", "/pd/decode/10.0.0.1:1", "/pd/pending/prefill/10.0.0.1:1", "/pd/pending/decode/10.0.0.1:1",
		"/pd/override/prefill/10.0.0.1:1", "/pd/override/decode/10.0.0.1:1", "/pd/proxies/p", "/pd/load/p", "/pd/audit/a", "/pd/meta/schema", "/pd/meta/kept",
		"mooncake/segment", "mooncake-store/x", "/oplog/1", "/pd-other/decode/10.0.0.1:1", "foreign",
	}
	for user, rights := range map[string][]right{
		schema.RoleAgentPrefill: {writes, nothing, reads, nothing, reads, nothing, nothing, nothing, nothing, reads, nothing},
		schema.RoleAgentDecode:  {nothing, writes, nothing, reads, nothing, reads, nothing, nothing, nothing, reads, nothing},
		schema.RoleProxy:        {writes, writes, writes, writes, writes, writes, writes, writes, writes, writes, writes},
		schema.RoleOperator:     {writes, writes, writes, writes, writes, writes, reads, reads, writes, writes, writes},
	} {
		cli := as(user)
		for i, key := range keys {
			has := nothing
			if i < len(rights) {
				has = rights[i]
			}
			denied := func(what string, err error, allowed bool) {
				t.Helper()
				assert.True(t, (!allowed || err == nil) && (allowed || errors.Is(err, rpctypes.ErrPermissionDenied)),
					"%s %s %s: %v", user, what, key, err)
			}
			_, err := cli.Get(ctx, key)
			denied("reads", err, has >= reads)
			_, err = cli.Txn(ctx).If(clientv3.Compare(clientv3.CreateRevision(key), "=", 0)).Commit()
			denied("compares", err, has >= reads)
			if key == "/pd/meta/schema" && has == writes {
				continue // the schema key keeps its value
			}
			_, err = cli.Put(ctx, key, "mine")
			denied("puts", err, has == writes)
			_, err = cli.Delete(ctx, key)
			denied("deletes", err, has == writes)
		}
		_, err := cli.UserAdd(ctx, "mallory", "x")
		assert.ErrorIs(t, err, rpctypes.ErrPermissionDenied, "%s adds users", user)
		w := <-cli.Watch(clientv3.WithRequireLeader(ctx), "mooncake/", clientv3.WithPrefix())
		assert.Error(t, w.Err(), "%s watches Mooncake's keys", user)
	}
}

// The programs work as these users. An agent registers and renews its lease, in both roles if it
// has both, and in no other. A proxy publishes its presence and load, follows, and promotes
// pending adds. An operator sets intents. Leases are granted and revoked with authentication.
func TestUsers_ProgramsWork(t *testing.T) {
	t.Parallel()
	_, as := withUsers(t)
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	layout := members.Layout(t)
	log := logrus.New()
	log.SetOutput(t.Output())
	decode := instance.Key{Role: instance.Decode, Address: "10.0.0.1:8200"}
	record := func(k instance.Key) instance.Record {
		return instance.Record{ID: "1", Address: k.Address, Models: []string{"m"}, State: instance.Ready}
	}
	register := func(user string, k instance.Key) *lease.Registrar {
		reg := lease.NewRegistrar(as(user), lease.RegistrarOptions{Layout: layout, Key: k, TTL: 5 * time.Second, HostID: "h", Log: log})
		reg.Set(record(k))
		t.Cleanup(background.Start(t.Context(), reg.Run))
		return reg
	}
	phase := func(reg *lease.Registrar, want lease.Phase, says string) {
		t.Helper()
		testkit.Until(t, time.Minute, reg.Status, func(st lease.Status) bool {
			return st.Phase == want && strings.Contains(st.Err, says)
		})
	}
	// A proxy starts first, and follows.
	proxy := as(schema.RoleProxy)
	watcher := watch.New(proxy, watch.Options{
		Layout: layout, Writer: store.New(proxy, layout, "proxy p").Watch, Log: log, AuditInterval: time.Second, Prober: answering{}, WaitingInterval: 100 * time.Millisecond,
	})
	wctx, stopWatcher := context.WithCancel(ctx)
	watched := make(chan struct{})
	go func() { defer close(watched); watcher.Run(wctx) }()
	defer func() { stopWatcher(); <-watched }()
	assert.NoError(t, store.New(proxy, layout, "proxy p").EnsureSchema(ctx))
	presence := lease.NewPresence(proxy, lease.PresenceOptions{
		Layout: layout, ID: "p", Address: "10.0.0.9:8000", Version: "test", Log: log,
		Applied: func() int64 { return watcher.Status().Applied }, Report: func() (r lease.Report) { return r },
		Load: &loaddigest.Source{
			Applied: func() int64 { return watcher.Status().Applied }, Changed: func() <-chan struct{} { return watcher.Snapshot().Changed() },
			InFlight:   func() []schema.LoadEntry { return nil },
			HasPrompts: func() bool { return false }, TakePrompts: func(int) []byte { return nil },
		},
	})
	pctx, stopPresence := context.WithCancel(ctx)
	present := make(chan struct{})
	go func() { defer close(present); presence.Run(pctx) }()
	defer func() { stopPresence(); <-present }()

	reg := register(schema.RoleAgentDecode, decode)
	phase(reg, lease.Registered, "")
	phase(register(schema.RoleAgentDecode, instance.Key{Role: instance.Prefill, Address: "10.0.0.2:8100"}), lease.Registering, "denies this user access")

	sees := func(what string, ok func(*instance.Snapshot) bool) {
		t.Helper()
		testkit.Eventually(t, time.Minute, func() error {
			if !ok(watcher.Snapshot()) {
				return fmt.Errorf("%s: %+v", what, watcher.Status())
			}
			return nil
		})
	}
	has := func(k instance.Key, usable bool) func(*instance.Snapshot) bool {
		return func(s *instance.Snapshot) bool {
			in, there := s.Lookup(k)
			return there == usable && (!there || in.Usable())
		}
	}
	sees("registered", has(decode, true))
	for _, key := range []string{layout.Proxy("p"), layout.Load("p")} {
		testkit.Eventually(t, time.Minute, func() error {
			resp, err := as(schema.RoleOperator).Get(ctx, key)
			if err == nil && len(resp.Kvs) == 0 {
				err = fmt.Errorf("%s is not there", key)
			}
			return err
		})
	}
	// A pending add becomes an instance.
	waiting := instance.Key{Role: instance.Prefill, Address: "10.0.0.3:8100"}
	operator := store.New(as(schema.RoleOperator), layout, "operator")
	_, err := operator.Instances.AddPending(ctx, waiting, schema.PendingAdd{}, 0, "")
	require.NoError(t, err)
	sees("promoted", func(s *instance.Snapshot) bool {
		in, ok := s.Lookup(waiting)
		return ok && in.View != instance.Pending
	})
	// A proxy can read the lease of an agent; only the agent can revoke it.
	resp, err := proxy.Get(ctx, layout.Instance(decode))
	require.NoError(t, err)
	require.Len(t, resp.Kvs, 1)
	lease := clientv3.LeaseID(resp.Kvs[0].Lease)
	if ttl, err := proxy.TimeToLive(ctx, lease); err != nil || ttl.TTL <= 0 {
		t.Errorf("time to live: %+v, %v", ttl, err)
	}
	_, err = as(schema.RoleAgentPrefill).Revoke(ctx, lease)
	assert.ErrorIs(t, err, rpctypes.ErrPermissionDenied, "an agent of the other role revokes it")
	leaving := record(decode)
	leaving.State = instance.Draining
	reg.Set(leaving)
	sees("draining", func(s *instance.Snapshot) bool {
		in, ok := s.Lookup(decode)
		return ok && in.Record.State == instance.Draining
	})
	assert.NoError(t, reg.Revoke(ctx))
	sees("removed", has(decode, false))
}

// answering is a Prober for which every engine answers.
type answering struct{}

func (answering) Probe(context.Context, *instance.Instance) (instance.Facts, error) {
	return instance.Facts{Models: []string{"m"}}, nil
}

// interrupted is an output that calls off once a line contains word.
type interrupted struct {
	testkit.Buffer
	word string
	off  func()
}

func (i *interrupted) Write(p []byte) (int, error) {
	n, err := i.Buffer.Write(p)
	if strings.Contains(string(p), i.word) {
		i.off()
	}
	return n, err
}

// A generated password is printed before the next user is created:
// however the command ends, no user has an unknown password.
func TestAuthInitInterrupted(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	out := &interrupted{word: ": password ", off: cancel}
	code := pdctl.Run(ctx, []string{"auth", "init", "--apply"}, out, out, func(name string) (string, bool) {
		return r.etcd.Endpoint(), name == "PD_ETCD_ENDPOINTS"
	})
	made, err := r.cli.UserList(t.Context())
	if err != nil || code == 0 || len(made.Users) != 1 || !strings.Contains(out.String(), made.Users[0]+": password ") {
		t.Errorf("%d, %v, users %v\n%s", code, err, made, out)
	}
}

// Without --apply, nothing is changed and the output consists of commands. A second --apply keeps existing
// users, and sets a user's password from a file. Commands of doctor name the user, unless etcd refuses it.
func TestAuthInit_Repeated(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.put("/pd/decode/10.0.0.1:8200", "{broken")
	code, out, errs := r.run("auth", "init", "--dry-run")
	for _, want := range []string{
		"etcdctl role grant-permission --prefix=true pd-agent-decode readwrite /pd/decode/\n",
		"etcdctl role grant-permission pd-agent-decode read /pd/meta/schema\n", "etcdctl user grant-role pd-proxy pd-proxy\n", "etcdctl auth enable\n",
	} {
		assert.True(t, code == 0 && strings.Contains(out, want), "%d %q is not in\n%s%s", code, want, out, errs)
	}
	if resp, err := r.cli.AuthStatus(t.Context()); err != nil || resp.Enabled {
		t.Fatalf("%v %v", resp, err)
	}
	file := filepath.Join(t.TempDir(), "pass")
	testkit.WriteFile(t, file, "secret\n")
	_, err := r.cli.RoleAdd(t.Context(), "reader")
	require.NoError(t, err)
	_, err = r.cli.RoleGrantPermission(t.Context(), "reader", "/pd/", "/pd0", clientv3.PermissionType(clientv3.PermRead))
	require.NoError(t, err)
	_, err = r.cli.UserAdd(t.Context(), "reader", "secret")
	require.NoError(t, err)
	_, err = r.cli.UserGrantRole(t.Context(), "reader", "reader")
	require.NoError(t, err)
	code, out, errs = r.run("auth", "init", "--apply", "--password-file", "root="+file)
	require.Equal(t, 0, code, "%s%s", out, errs)
	assert.Contains(t, r.exits(1, "auth", "init", "--apply").errs, "user name")
	as := []string{"--etcd-username", "root", "--etcd-password-file", file}
	code, out, errs = r.run(append(as, "auth", "init", "--apply", "--password-file", "pd-operator="+file, "--password-file", "pd-agent-decode="+file)...)
	if code != 0 || strings.Contains(out, ": password ") || !strings.Contains(out, "pd-proxy: existed, and keeps its password") {
		t.Errorf("again: %d %s%s", code, out, errs)
	}
	code, out, errs = r.run("list", "--etcd-username", "pd-operator", "--etcd-password-file", file)
	assert.Equal(t, 0, code, "the operator: %s%s", out, errs)
	if code, out, errs := r.run("cordon", "decode", "10.0.0.1:8200", "--etcd-username", "reader", "--etcd-password-file", file); code == 0 || !strings.Contains(out, "denies this user") || strings.Contains(out+errs, "applied all the same") {
		t.Errorf("a user with read rights only: %d %s%s", code, out, errs)
	}
	for user, want := range map[string]string{
		"pd-operator":     "pdctl get decode/10.0.0.1:8200 --etcd-endpoints " + r.etcd.Endpoint() + " --etcd-username pd-operator --etcd-password-file " + file + "\n",
		"pd-agent-decode": "pdctl status --etcd-username pd-operator --etcd-endpoints " + r.etcd.Endpoint() + "\n",
	} {
		if _, out, errs := r.run("doctor", "--agents=false", "--etcd-username", user, "--etcd-password-file", file); !strings.Contains(out, want) {
			t.Errorf("doctor as %s: %q is not in\n%s%s", user, want, out, errs)
		}
	}
	// A user can change its password.
	newer := filepath.Join(t.TempDir(), "newer")
	testkit.WriteFile(t, newer, "\ufeffother\r\n") // as editors on Windows write it
	code, out, errs = r.run(append(as, "auth", "init", "--apply", "--password-file", "root="+newer)...)
	assert.Equal(t, 0, code, "its own password: %s%s", out, errs)
	code, out, errs = r.run("list", "--etcd-username", "root", "--etcd-password", "other")
	assert.Equal(t, 0, code, "the new password: %s%s", out, errs)
	for _, bad := range [][]string{
		{"auth", "init", "--apply", "--dry-run"}, {"auth", "init", "--password-file", "nobody=" + file}, {"auth", "init", "--password-file", "root=/nowhere/f"},
		{"auth", "init", "--apply", "--etcd-endpoints", "10.0.0.1:2379"},
	} {
		if code, out, errs := r.run(bad...); code != 2 {
			t.Errorf("%q: %d %s%s", bad, code, out, errs)
		}
	}
}
