package others_test

import (
	"fmt"
	"maps"
	"testing"
	"time"

	"github.com/pdmesh/pdmesh/internal/discovery/lease"
	"github.com/pdmesh/pdmesh/internal/discovery/schema"
	"github.com/pdmesh/pdmesh/internal/others"
	"github.com/pdmesh/pdmesh/internal/sched"
)

// What a proxy said is worth less and less, and nothing in the end.
func TestWorth(t *testing.T) {
	t.Parallel()
	last := 1.0
	for age := time.Duration(0); age < time.Minute; age += 100 * time.Millisecond {
		is := others.Worth(age)
		if is > last || is < 0 {
			t.Fatalf("%g at %s, after %g", is, age, last)
		}
		last = is
	}
	if others.Worth(0) != 1 || others.Worth(2*lease.RefreshLoad) != 1 || last != 0 {
		t.Error("a fresh one is not worth all, or an old one something")
	}
	if a, b := others.Worth(10*time.Second), others.Worth(13*time.Second); b != a/2 {
		t.Errorf("%g, and %g three seconds later", a, b)
	}
}

func TestSum(t *testing.T) {
	t.Parallel()
	now := time.Now()
	of := func(id string, age time.Duration, load map[string]schema.LoadCount) *lease.ProxyLoad {
		return &lease.ProxyLoad{ID: id, Heard: now.Add(-age), Digest: schema.Digest{Load: load}}
	}
	c := schema.LoadCount{InFlight: 2, Waiting: 20, Held: 200}
	ignored := of("e", 0, map[string]schema.LoadCount{"decode/d:1": c})
	ignored.Ignored = "nonsense"
	got := others.Sum([]*lease.ProxyLoad{
		of("own", 0, map[string]schema.LoadCount{"decode/d:1": c}),
		of("a", 0, map[string]schema.LoadCount{"decode/d:1": c, "prefill/d:1": c, "prefill/p:1": c}),
		of("b", time.Second, map[string]schema.LoadCount{"decode/d:1": c}),
		of("hangs", 10*time.Second, map[string]schema.LoadCount{"decode/d:1": c}),
		of("gone", time.Hour, map[string]schema.LoadCount{"decode/d:1": c}),
		ignored,
	}, "own", now)
	want := map[string]sched.Counts{"d:1": {InFlight: 5, Waiting: 50, Held: 500}, "p:1": {InFlight: 2, Waiting: 20, Held: 200}}
	if !maps.Equal(got, want) {
		t.Errorf("%+v, want %+v", got, want)
	}
}

func TestAny(t *testing.T) {
	t.Parallel()
	now := time.Now()
	busy := map[string]schema.LoadCount{"decode/d:1": {InFlight: 1}}
	for _, tc := range []struct {
		name string
		one  lease.ProxyLoad
		want bool
	}{
		{"its own", lease.ProxyLoad{ID: "own", Heard: now, Digest: schema.Digest{Load: busy}}, false},
		{"a busy one", lease.ProxyLoad{ID: "a", Heard: now, Digest: schema.Digest{Load: busy}}, true},
		{"one that hangs", lease.ProxyLoad{ID: "a", Heard: now.Add(-time.Hour), Digest: schema.Digest{Load: busy}}, false},
		{"an idle one, which writes nothing", lease.ProxyLoad{ID: "a", Heard: now.Add(-time.Hour)}, true},
		{"one that is not understood", lease.ProxyLoad{ID: "a", Heard: now, Ignored: "newer"}, false},
	} {
		if got := others.Any([]*lease.ProxyLoad{&tc.one}, "own", now); got != tc.want {
			t.Errorf("%s: %t", tc.name, got)
		}
	}
	if others.Any(nil, "own", now) {
		t.Error("nobody is somebody")
	}
}

// What a thousand proxies cost one of them each time that it adds up what they tell.
func BenchmarkSum(b *testing.B) {
	now := time.Now()
	all := make([]*lease.ProxyLoad, 1000)
	for p := range all {
		d := schema.Digest{Load: map[string]schema.LoadCount{}}
		for i := range 50 {
			d.Load[fmt.Sprintf("prefill/10.0.1.%d:8100", (p+5*i)%250)] = schema.LoadCount{InFlight: 1}
			d.Load[fmt.Sprintf("decode/10.0.2.%d:8200", (p+5*i)%250)] = schema.LoadCount{InFlight: 1}
		}
		all[p] = &lease.ProxyLoad{ID: fmt.Sprint(p), Digest: d, Heard: now}
	}
	for b.Loop() {
		others.Sum(all, "own", now)
	}
}

func TestNews(t *testing.T) {
	t.Parallel()
	own, a, b := &lease.ProxyLoad{ID: "own"}, &lease.ProxyLoad{ID: "a"}, &lease.ProxyLoad{ID: "b", Ignored: "nonsense"}
	var s others.Seen
	if got := s.News([]*lease.ProxyLoad{own, a, b}, "own"); len(got) != 1 || got[0] != a {
		t.Errorf("%v", got)
	}
	if got := s.News([]*lease.ProxyLoad{own, a, b}, "own"); len(got) != 0 {
		t.Errorf("%v again", got)
	}
	next := &lease.ProxyLoad{ID: "a"}
	if got := s.News([]*lease.ProxyLoad{own, next}, "own"); len(got) != 1 || got[0] != next {
		t.Errorf("%v", got)
	}
}
