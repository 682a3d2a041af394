// Package members has what tests of the membership share: keys and values, watchers with
// quick timers, an instance with scripted answers.
package members

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/pdmesh/pdmesh/internal/cli/background"
	"github.com/pdmesh/pdmesh/internal/connector"
	"github.com/pdmesh/pdmesh/internal/discovery/etcd"
	"github.com/pdmesh/pdmesh/internal/discovery/lease"
	"github.com/pdmesh/pdmesh/internal/discovery/schema"
	"github.com/pdmesh/pdmesh/internal/discovery/store"
	"github.com/pdmesh/pdmesh/internal/discovery/watch"
	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/sim/testkit"
	"github.com/pdmesh/pdmesh/sim/testkit/etcdtest"
)

// Soon is how long a test waits for what should happen: plenty, since a
// machine under test load is slow, and nothing is asserted on it.
const Soon = time.Minute

// Layout returns the layout of keys with the prefix /pd.
func Layout(t testing.TB) schema.Layout {
	t.Helper()
	l, err := schema.NewLayout("/pd")
	require.NoError(t, err)
	return l
}

// Prefill returns the key of a prefill instance.
func Prefill(address string) instance.Key {
	return instance.Key{Role: instance.Prefill, Address: address}
}

// Decode returns the key of a decode instance.
func Decode(address string) instance.Key {
	return instance.Key{Role: instance.Decode, Address: address}
}

// PairKey returns a pair key with the connector of the record.
func PairKey(in *instance.Instance) connector.PairKey {
	return connector.PairKey{Connector: in.Record.Connector}
}

// Put writes a key, and returns the revision.
func Put(t testing.TB, cli *clientv3.Client, key, value string, opts ...clientv3.OpOption) int64 {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), Soon)
	defer cancel()
	resp, err := cli.Put(ctx, key, value, opts...)
	require.NoError(t, err, "put %s", key)
	return resp.Header.Revision
}

// Del deletes a key.
func Del(t testing.TB, cli *clientv3.Client, key string) {
	t.Helper()
	_, err := cli.Delete(t.Context(), key)
	require.NoError(t, err, "delete %s", key)
}

// Lease grants a lease of ttl seconds.
func Lease(t testing.TB, cli *clientv3.Client, ttl int64) clientv3.LeaseID {
	t.Helper()
	resp, err := cli.Grant(t.Context(), ttl)
	require.NoError(t, err)
	return resp.ID
}

// Ready is the record of a ready instance.
const Ready = `{"v":1,"id":"A","models":["m"],"state":"ready"}`

// Watch starts a Watcher that ends with the test.
func Watch(t testing.TB, cli *clientv3.Client, o watch.Options) *watch.Watcher {
	t.Helper()
	if o.Writer == nil {
		o.Writer = store.New(cli, o.Layout, "watcher").Watch
	}
	w := watch.New(cli, o)
	Run(t, w.Run)
	return w
}

// Run runs a part of a program until the test ends.
func Run(t testing.TB, run func(context.Context)) {
	t.Helper()
	t.Cleanup(background.Start(context.Background(), run))
}

// WatcherOptions is a Watcher whose timers suit a test.
func WatcherOptions(t testing.TB) watch.Options {
	return watch.Options{
		Layout:          Layout(t),
		WaitingInterval: 20 * time.Millisecond,
		CheckInterval:   50 * time.Millisecond,
	}
}

// WaitReady waits for the first list of the Watcher.
func WaitReady(t testing.TB, w *watch.Watcher) {
	t.Helper()
	soon := time.NewTimer(Soon)
	defer soon.Stop()
	select {
	case <-w.Ready():
	case <-soon.C:
		t.Fatalf("no first list: %+v", w.Status())
	}
}

// WaitState waits for a state of the Watcher.
func WaitState(t testing.TB, w *watch.Watcher, want watch.State) {
	t.Helper()
	WaitStatus(t, w, func(s watch.Status) bool { return s.State == want })
}

// WaitStatus waits until the status of the Watcher is one that a test wants.
func WaitStatus(t testing.TB, w *watch.Watcher, want func(watch.Status) bool) {
	t.Helper()
	testkit.Until(t, Soon, w.Status, want)
}

// EverySnapshot checks the current snapshot of w and each newer one, until stop is called or the
// test ends. It fails the test with the first error of check.
func EverySnapshot(t testing.TB, w *watch.Watcher, check func(*instance.Snapshot) error) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var checks sync.WaitGroup
	checks.Go(func() {
		instance.Await(ctx, w.Snapshot, func(s *instance.Snapshot) bool {
			return !assert.NoError(t, check(s), "at revision %d", s.Revision)
		})
	})
	stop = func() { cancel(); checks.Wait() }
	t.Cleanup(stop)
	return stop
}

// NeverWithout fails the test if an instance is not usable in a snapshot of w, until stop is called
// or the test ends.
func NeverWithout(t testing.TB, w *watch.Watcher, keys ...instance.Key) (stop func()) {
	t.Helper()
	return EverySnapshot(t, w, func(s *instance.Snapshot) error {
		for _, k := range keys {
			if in, ok := s.Lookup(k); !ok || !in.Usable() {
				return fmt.Errorf("%s is not usable: %+v", k, in)
			}
		}
		return nil
	})
}

// WaitFor waits until an instance is as wanted, or absent if want is nil.
func WaitFor(t testing.TB, w *watch.Watcher, k instance.Key, want func(*instance.Instance) error) *instance.Instance {
	t.Helper()
	var found *instance.Instance
	testkit.Eventually(t, Soon, func() error {
		in, ok := w.Snapshot().Lookup(k)
		found = in
		switch {
		case want == nil && ok:
			return fmt.Errorf("%s is still there: %+v", k, in)
		case want == nil:
			return nil
		case !ok:
			return fmt.Errorf("%s is not there", k)
		}
		return want(in)
	})
	return found
}

// Usable returns an error if an instance is not usable.
func Usable(in *instance.Instance) error {
	if !in.Usable() {
		return fmt.Errorf("%s is not usable: %+v", in.Key, in)
	}
	return nil
}

// Is returns a check of an instance for WaitFor.
func Is(want func(*instance.Instance) bool) func(*instance.Instance) error {
	return func(in *instance.Instance) error {
		if !want(in) {
			return fmt.Errorf("%+v", in)
		}
		return nil
	}
}

// HasView returns a check of the view of an instance.
func HasView(v instance.View) func(*instance.Instance) error {
	return func(in *instance.Instance) error {
		if in.View != v {
			return fmt.Errorf("view of %s is %q (%s), want %q", in.Key, in.View, in.Reason, v)
		}
		return nil
	}
}

// Prober answers as scripted; instances without a script refuse.
type Prober struct {
	Mu     sync.Mutex // guards all fields
	Facts  map[string]instance.Facts
	probes map[string]int
	Now    int
	Most   int
	Hold   chan struct{} // if set, probes wait for its end
}

// NewProber returns a Prober without scripts.
func NewProber() *Prober {
	return &Prober{Facts: map[string]instance.Facts{}, probes: map[string]int{}}
}

// Answer scripts an instance that serves models.
func (p *Prober) Answer(address string, models ...string) {
	p.Mu.Lock()
	defer p.Mu.Unlock()
	p.Facts[address] = instance.Facts{Models: models, MaxModelLen: 4096, Version: "0.12.0"}
}

// Set scripts the facts of an instance.
func (p *Prober) Set(address string, f instance.Facts) {
	p.Mu.Lock()
	defer p.Mu.Unlock()
	p.Facts[address] = f
}

// Count returns the number of probes of an instance.
func (p *Prober) Count(address string) int {
	p.Mu.Lock()
	defer p.Mu.Unlock()
	return p.probes[address]
}

var errRefused = errors.New("connection refused")

// Probe implements watch.Prober.
func (p *Prober) Probe(ctx context.Context, in *instance.Instance) (instance.Facts, error) {
	p.Mu.Lock()
	p.probes[in.Address]++
	p.Now++
	p.Most = max(p.Most, p.Now)
	f, ok := p.Facts[in.Address]
	hold := p.Hold
	p.Mu.Unlock()
	defer func() {
		p.Mu.Lock()
		p.Now--
		p.Mu.Unlock()
	}()
	if hold != nil {
		select {
		case <-hold:
		case <-ctx.Done():
			return instance.Facts{}, ctx.Err()
		}
	}
	if !ok {
		return instance.Facts{}, errRefused
	}
	return f, nil
}

// Register starts a Registrar that ends with the test.
func Register(t testing.TB, cli *clientv3.Client, o lease.RegistrarOptions) *lease.Registrar {
	t.Helper()
	r := lease.NewRegistrar(cli, o)
	Run(t, r.Run)
	return r
}

// WaitPhase waits for a phase of the Registrar.
func WaitPhase(t testing.TB, r *lease.Registrar, want lease.Phase) {
	t.Helper()
	WaitRegistration(t, r, func(s lease.Status) bool { return s.Phase == want })
}

// WaitRegistration waits until the status of the Registrar is one that a test wants.
func WaitRegistration(t testing.TB, r *lease.Registrar, want func(lease.Status) bool) {
	t.Helper()
	testkit.Eventually(t, Soon, func() error {
		if s := r.Status(); !want(s) {
			return fmt.Errorf("status %+v", s)
		}
		return nil
	})
}

// RawKey is the record's key as etcd has it, or nil.
func RawKey(t testing.TB, cli *clientv3.Client, k instance.Key) *store.RawKey {
	t.Helper()
	raw, err := store.New(cli, Layout(t), "test").Reader.Get(t.Context(), k)
	require.NoError(t, err)
	for _, r := range raw {
		if r.Key == Layout(t).Instance(k) {
			return &r
		}
	}
	return nil
}

// TTL is the TTL of RegistrarOptions.
const TTL = 9 * time.Second

// RegistrarOptions returns the options of a Registrar of k.
func RegistrarOptions(t testing.TB, k instance.Key) lease.RegistrarOptions {
	return lease.RegistrarOptions{Layout: Layout(t), Key: k, TTL: TTL, HostID: "host-1"}
}

// Dial makes a client as the programs do.
func Dial(t testing.TB, endpoints ...string) *clientv3.Client {
	t.Helper()
	return DialWith(t, etcd.Config{Endpoints: endpoints})
}

// DialWith connects to etcd with a configuration, until the test ends.
func DialWith(t testing.TB, cfg etcd.Config) *clientv3.Client {
	t.Helper()
	cli, err := etcd.Dial(cfg)
	require.NoError(t, err)
	t.Cleanup(func() { _ = cli.Close() })
	return cli
}

// OnMember makes a client that uses one member of a cluster, behind a link. The function that it
// returns adds the other members: a client that knows them may leave the member before the fault.
func OnMember(t testing.TB, c *etcdtest.Cluster, m *etcdtest.Server) (*clientv3.Client, *testkit.Link, func()) {
	t.Helper()
	link := testkit.StartLink(t, m.Endpoint())
	cli := Dial(t, link.Address())
	testkit.Eventually(t, Soon, func() error {
		_, err := etcd.Ping(t.Context(), cli, Layout(t))
		return err
	})
	endpoints := []string{link.Address()}
	for _, o := range c.Others(m) {
		endpoints = append(endpoints, o.Endpoint())
	}
	return cli, link, func() { cli.SetEndpoints(endpoints...) }
}

// Revoke revokes a lease.
func Revoke(t testing.TB, cli *clientv3.Client, id clientv3.LeaseID) {
	t.Helper()
	_, err := cli.Revoke(t.Context(), id)
	require.NoError(t, err)
}

// Probing returns WatcherOptions with a prober and the model of the fleet.
func Probing(t testing.TB, p watch.Prober, model string) watch.Options {
	o := WatcherOptions(t)
	o.Prober, o.Model = p, model
	return o
}

// BadValue is a value that is rejected with a reason that contains Reason.
type BadValue struct{ Name, Value, Reason string }

// BadValues returns values of prefill/10.0.0.1:8100 that must be rejected.
func BadValues() []BadValue {
	return []BadValue{
		{"broken JSON", `{"v":1,"models":[`, "broken JSON"},
		{"JSON and more", `{"v":1} {"v":1}`, "broken JSON"},
		{"one MiB", `{"id":"` + strings.Repeat("x", 1<<20) + `"}`, "the limit is 16384"},
		{"one byte too many", strings.Repeat(" ", 16<<10) + "x", "the limit is 16384"},
		{"binary", "\x00\x01\xfe\xff", "binary"},
		{"plain text", "hello \x1b[0m there", `hello \u001b[0m there`},
		{"an array", `["10.0.0.1:8100"]`, "JSON object"},
		{"null", `null`, "JSON object"},
		{"a number", `17`, "JSON object"},
		{"a string", `"10.0.0.1:8100"`, "JSON object"},
		{"wrong type", `{"models":"m"}`, `field models: string in place of a list`},
		{"a cause that is no text", `{"cause":1}`, `field cause: number in place of a string`},
		{"wrong type inside", `{"ports":{"a":"b"}}`, `field ports: string in place of a list`},
		{"negative weight", `{"weight":-1}`, "weight"},
		{"other role", `{"role":"both"}`, "role"},
		{"other port", `{"address":"10.0.0.1:1"}`, "port"},
		{"address without port", `{"address":"10.0.0.1"}`, "address"},
		{"wildcard address", `{"address":"0.0.0.0:8100"}`, "wildcard"},
		{"unknown state", `{"state":"Ready"}`, "state"},
		{"unknown scheme", `{"scheme":"ftp"}`, "scheme"},
		{"empty model", `{"models":["m",""]}`, "models[1]"},
		{"negative size", `{"tp_size":-2}`, "tp_size"},
		{"impossible port", `{"ports":{"side_channel":[70000]}}`, "70000"},
		{"negative version", `{"v":-1}`, `"v"`},
		{"bad time", `{"started_at":"yesterday"}`, "time"},
		{"another address", "10.9.9.9:8100", "10.9.9.9:8100"},
		{"URL with a path", "http://10.0.0.1:8100/v1", "URL"},
		{"URL with a password", "http://a:b@10.0.0.1:8100", "URL"},
		{"URL of another scheme", "ftp://10.0.0.1:8100", "URL"},
	}
}
