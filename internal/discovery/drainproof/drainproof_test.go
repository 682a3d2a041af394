package drainproof_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/pdmesh/pdmesh/internal/discovery/drainproof"
	"github.com/pdmesh/pdmesh/internal/discovery/lease"
	"github.com/pdmesh/pdmesh/internal/discovery/loaddigest"
	"github.com/pdmesh/pdmesh/internal/discovery/schema"
	"github.com/pdmesh/pdmesh/internal/discovery/store"
	"github.com/pdmesh/pdmesh/internal/instance"
)

var x = instance.Key{Role: instance.Decode, Address: "x:1"}

// saying returns the reports of proxies. Each proxy is its id, its
// applied revision, and its legs in flight on x; -1 legs: no digest.
func saying(proxies ...[3]any) store.Reports {
	t := store.Reports{Revision: 1000}
	for _, p := range proxies {
		id, applied, held := p[0].(string), p[1].(int), p[2].(int)
		t.Proxies = append(t.Proxies, lease.ProxyPresence{ID: id, Address: id + ":8000", Applied: int64(applied)})
		if held < 0 {
			continue
		}
		d := schema.Digest{V: 1, Applied: int64(applied), Load: map[string]schema.LoadCount{"decode/other:1": {InFlight: 9}}}
		if held > 0 {
			d.Load[x.String()] = schema.LoadCount{InFlight: int64(held)}
		}
		t.Loads = append(t.Loads, &loaddigest.ProxyLoad{ID: id, Digest: d})
	}
	return t
}

func never(int64, int64) ([]instance.Role, error) { return []instance.Role{instance.Decode}, nil }

func TestProof(t *testing.T) {
	t.Parallel()
	now := time.Now()
	p := drainproof.New(50, []instance.Key{x})
	see := func(after time.Duration, t store.Reports) drainproof.State {
		p.See(t, now.Add(after), never)
		return p.State(now.Add(after))
	}
	want := func(s drainproof.State, done int, over bool, open, vanished string) {
		t.Helper()
		if s.Done != done || s.Over() != over || strings.Join(s.Open, "; ") != open || strings.Join(s.Vanished, "; ") != vanished {
			t.Errorf("%+v, over %t", s, s.Over())
		}
	}
	const a, b, c = "proxy a:8000 (a)", "proxy b:8000 (b)", "proxy c:8000 (c)"
	want(see(0, saying([3]any{"a", 49, 0}, [3]any{"b", 50, 3}, [3]any{"c", 50, -1})), 0, false,
		a+" has not applied revision 50 yet, it is at 49; "+b+" has in flight: 3 on decode/x:1; "+
			c+" publishes no load digest: it has just started, or runs with --load-digests=off", "")
	// A proof remains valid even if its proxy disappears.
	want(see(time.Second, saying([3]any{"a", 50, 0}, [3]any{"b", 51, 1})), 1, false, b+" has in flight: 1 on decode/x:1", c)
	want(see(2*time.Second, saying([3]any{"b", 51, 0})), 2, false, "", c)
	// A proxy that was briefly absent may return; it then has to provide the proof.
	want(see(3*time.Second, saying([3]any{"b", 51, 7}, [3]any{"c", 50, 2})), 2, false, c+" has in flight: 2 on decode/x:1", "")
	want(see(4*time.Second, saying([3]any{"b", 51, 7})), 2, false, "", c)
	want(see(10*time.Second, saying([3]any{"b", 51, 7})), 2, true, "", c)
	// A proxy that starts later has to provide the proof, too: it may have started with an old snapshot.
	want(see(11*time.Second, saying([3]any{"d", 3, 0})), 2, false, "proxy d:8000 (d) has not applied revision 50 yet, it is at 3", c)
	want(see(12*time.Second, saying([3]any{"c", 60, 0}, [3]any{"d", 60, 0})), 4, false, "", "")
	want(see(20*time.Second, saying([3]any{"c", 60, 0}, [3]any{"d", 60, 0})), 4, true, "", "")
}

// After a pause of the machine all leases have expired, and proxies return to etcd one after the other.
func TestProofWhileProxiesReturn(t *testing.T) {
	t.Parallel()
	now := time.Now()
	p := drainproof.New(50, []instance.Key{x})
	a, b, c := [3]any{"a", 50, 0}, [3]any{"b", 50, 0}, [3]any{"c", 40, 1}
	for _, look := range []struct {
		at   int // s
		back [][3]any
		over bool
	}{
		{0, nil, true}, // no proxy is registered: pdctl keeps polling for a while
		{1, [][3]any{a}, false},
		{2, [][3]any{a, b}, false},
		{8, [][3]any{a, b}, false},
		{9, [][3]any{a, b, c}, false},
		{10, [][3]any{a, b, {"c", 50, 0}}, false},
		{18, [][3]any{a, b, {"c", 50, 0}}, true},
	} {
		at := now.Add(time.Duration(look.at) * time.Second)
		p.See(saying(look.back...), at, never)
		assert.Equal(t, look.over, p.State(at).Over(), "after %d s", look.at)
	}
}

// If a drain is lifted and set again between two polls, the proof of the first drain
// does not count for the second. Every proxy that is present has to prove it again.
func TestProofOfTheNewestIntent(t *testing.T) {
	t.Parallel()
	now := time.Now()
	p := drainproof.New(50, []instance.Key{x})
	see := func(intent int64, proxies ...[3]any) drainproof.State {
		said := saying(proxies...)
		said.Intents = map[instance.Key]store.Standing{x: {Intent: instance.Drain, Revision: intent}}
		p.See(said, now, never)
		return p.State(now)
	}
	if s := see(50, [3]any{"a", 50, 0}, [3]any{"b", 50, 1}, [3]any{"ended", 50, 0}); s.Done != 2 || s.Over() {
		t.Fatalf("%+v", s)
	}
	s := see(60, [3]any{"a", 60, 4}, [3]any{"b", 60, 0})
	if s.Done != 2 || len(s.Open) != 1 || !strings.Contains(s.Open[0], "proxy a:8000 (a) has in flight: 4") || len(s.Vanished) != 0 {
		t.Errorf("%+v", s)
	}
	s = see(60, [3]any{"a", 60, 0}, [3]any{"b", 60, 0})
	assert.True(t, s.Over() && s.Done == 3, "%+v", s)
}

// A digest that omits leaving instances, or that cannot be read, proves nothing.
func TestNoProof(t *testing.T) {
	t.Parallel()
	now := time.Now()
	for name, change := range map[string]func(*loaddigest.ProxyLoad){
		"more in flight on leaving instances":                func(l *loaddigest.ProxyLoad) { l.LeavingLeftOut = 1 },
		"publishes a load digest that cannot be read: newer": func(l *loaddigest.ProxyLoad) { l.Ignored = "newer" },
	} {
		said := saying([3]any{"a", 50, 0})
		change(said.Loads[0])
		p := drainproof.New(50, []instance.Key{x})
		p.See(said, now, never)
		s := p.State(now)
		assert.True(t, s.Done == 0 && len(s.Open) == 1 && strings.Contains(s.Open[0], name), "%s: %+v", name, s)
	}
}

// A proxy that has not noticed a wipe of etcd has applied no
// revision of the new store, although its revision is higher.
func TestProofInAnotherStore(t *testing.T) {
	t.Parallel()
	now := time.Now()
	p := drainproof.New(11, []instance.Key{x})
	said := saying([3]any{"a", 213, 0}, [3]any{"b", 12, 0})
	said.Revision = 12
	p.See(said, now, never)
	if s := p.State(now); s.Done != 1 || len(s.Open) != 1 || s.Open[0] != "proxy a:8000 (a) follows a former etcd store: it has applied revision 213, and etcd is at 12" {
		t.Errorf("%+v", s)
	}
}

// Without instances, the proof is that the revision was applied. A lower applied revision is enough if
// nothing changed between the two. A higher one is not if the proxy may not know what changed.
func TestApplied(t *testing.T) {
	t.Parallel()
	now := time.Now()
	p := drainproof.New(50, nil)
	reports := saying([3]any{"a", 50, -1}, [3]any{"b", 40, 5}, [3]any{"c", 39, 0}, [3]any{"d", 41, 0}, [3]any{"e", 51, 0}, [3]any{"f", 51, 0}, [3]any{"g", 38, 0})
	reports.Proxies[5].Documents = schema.Folders()
	p.See(reports, now, func(a, b int64) ([]instance.Role, error) {
		switch a {
		case 38:
			return nil, errors.New("timeout")
		case 39:
			return []instance.Role{instance.Decode, schema.Limits}, nil
		case 40:
			return nil, nil
		default:
			return []instance.Role{schema.Limits}, nil
		}
	})
	want := []string{
		"proxy c:8000 (c) has not applied revision 50 yet, it is at 39",
		"proxies d:8000 (d), e:8000 (e): each is of an older release, which may not know the limits or model routes that changed: update it",
		"proxy g:8000 (g) cannot be compared with etcd: timeout",
	}
	s := p.State(now)
	assert.True(t, s.Done == 3 && s.Older == 2, "%+v", s)
	assert.Equal(t, want, s.Open)
}

// Proxies with the same reason are named together.
func TestSameReason(t *testing.T) {
	t.Parallel()
	now := time.Now()
	p := drainproof.New(50, []instance.Key{x})
	p.See(saying([3]any{"a", 49, 0}, [3]any{"b", 50, 3}, [3]any{"c", 49, 0}, [3]any{"d", 50, -1}, [3]any{"e", 50, -1}, [3]any{"f", 50, -1}, [3]any{"g", 50, -1}, [3]any{"h", 50, -1}), now, never)
	s := p.State(now)
	want := []string{
		"proxies a:8000 (a), c:8000 (c): each has not applied revision 50 yet, it is at 49",
		"proxy b:8000 (b) has in flight: 3 on decode/x:1",
		"proxies d:8000 (d), e:8000 (e), f:8000 (f), g:8000 (g) and 1 more: each publishes no load digest: it has just started, or runs with --load-digests=off",
	}
	assert.True(t, strings.Join(s.Open, "\n") == strings.Join(want, "\n") && s.Waiting == 8 && !s.Over(),
		"%d waiting:\n%s", s.Waiting, strings.Join(s.Open, "\n"))
}
