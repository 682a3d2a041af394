package loaddigest_test

import (
	"fmt"
	"maps"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pdmesh/pdmesh/internal/discovery/loaddigest"
	"github.com/pdmesh/pdmesh/internal/discovery/schema"
	"github.com/pdmesh/pdmesh/internal/instance"
)

// The weight of a digest decreases with its age, down to 0.
func TestWeight(t *testing.T) {
	t.Parallel()
	last := 1.0
	for age := time.Duration(0); age < time.Minute; age += 100 * time.Millisecond {
		is := loaddigest.Weight(age)
		require.True(t, is <= last && is >= 0, "%g at %s, after %g", is, age, last)
		last = is
	}
	assert.True(t, loaddigest.Weight(0) == 1 && loaddigest.Weight(2*loaddigest.Refresh) == 1 && last == 0,
		"a fresh digest must have weight 1, and an old one 0")
	assert.Equal(t, loaddigest.Weight(10*time.Second)/2, loaddigest.Weight(13*time.Second), "three seconds later")
}

func TestSum(t *testing.T) {
	t.Parallel()
	now := time.Now()
	of := func(id string, age time.Duration, load map[string]schema.LoadCount) *loaddigest.ProxyLoad {
		return &loaddigest.ProxyLoad{ID: id, ReceivedAt: now.Add(-age), Digest: schema.Digest{Load: load}}
	}
	c := schema.LoadCount{InFlight: 2, Waiting: 20, Held: 200}
	ignored := of("e", 0, map[string]schema.LoadCount{"decode/d:1": c})
	ignored.Ignored = "nonsense"
	got := loaddigest.Sum([]*loaddigest.ProxyLoad{
		of("own", 0, map[string]schema.LoadCount{"decode/d:1": c}),
		of("a", 0, map[string]schema.LoadCount{"decode/d:1": c, "prefill/d:1": c, "prefill/p:1": c}),
		of("b", time.Second, map[string]schema.LoadCount{"decode/d:1": c}),
		of("hangs", 10*time.Second, map[string]schema.LoadCount{"decode/d:1": c}),
		of("ended", time.Hour, map[string]schema.LoadCount{"decode/d:1": c}),
		ignored,
	}, "own", now)
	want := map[string]instance.OthersLoad{"d:1": {InFlight: 5, Waiting: 50, Held: 500}, "p:1": {InFlight: 2, Waiting: 20, Held: 200}}
	assert.True(t, maps.Equal(got, want), "%+v, want %+v", got, want)
}

func TestPresent(t *testing.T) {
	t.Parallel()
	now := time.Now()
	busy := map[string]schema.LoadCount{"decode/d:1": {InFlight: 1}}
	for _, tc := range []struct {
		name string
		one  loaddigest.ProxyLoad
		want bool
	}{
		{"its own", loaddigest.ProxyLoad{ID: "own", ReceivedAt: now, Digest: schema.Digest{Load: busy}}, false},
		{"a busy one", loaddigest.ProxyLoad{ID: "a", ReceivedAt: now, Digest: schema.Digest{Load: busy}}, true},
		{"one that hangs", loaddigest.ProxyLoad{ID: "a", ReceivedAt: now.Add(-time.Hour), Digest: schema.Digest{Load: busy}}, false},
		{"an idle one, which writes nothing", loaddigest.ProxyLoad{ID: "a", ReceivedAt: now.Add(-time.Hour)}, true},
		{"one that is not understood", loaddigest.ProxyLoad{ID: "a", ReceivedAt: now, Ignored: "newer"}, false},
	} {
		assert.Equal(t, tc.want, loaddigest.Present([]*loaddigest.ProxyLoad{&tc.one}, "own", now), tc.name)
	}
	assert.False(t, loaddigest.Present(nil, "own", now), "another proxy without digests")
}

func TestSeen(t *testing.T) {
	t.Parallel()
	own, a, b := &loaddigest.ProxyLoad{ID: "own"}, &loaddigest.ProxyLoad{ID: "a"}, &loaddigest.ProxyLoad{ID: "b", Ignored: "nonsense"}
	var s loaddigest.Seen
	got := s.Update([]*loaddigest.ProxyLoad{own, a, b}, "own")
	assert.True(t, len(got) == 1 && got[0] == a, "%v", got)
	assert.Len(t, s.Update([]*loaddigest.ProxyLoad{own, a, b}, "own"), 0, "again")
	next := &loaddigest.ProxyLoad{ID: "a"}
	got = s.Update([]*loaddigest.ProxyLoad{own, next}, "own")
	assert.True(t, len(got) == 1 && got[0] == next, "%v", got)
}

// The first schema.KeyRates numbers of a key lose weight as their digest grows old. They keep it if this
// proxy's digest is old, too: then etcd is unreachable. The numbers after them never lose weight.
func TestKeys(t *testing.T) {
	t.Parallel()
	demand, now := map[string][]int64{"a": {8, 4, 0, 0, 0, 0, 0, 0, 2, 6}}, time.Now()
	age := func(id string, d time.Duration) *loaddigest.ProxyLoad {
		return &loaddigest.ProxyLoad{ID: id, ReceivedAt: now.Add(-d), Digest: schema.Digest{Keys: demand}}
	}
	for own, want := range map[time.Duration]string{0: "a:[4 2 0 0 0 0 0 0 1 6]", 10 * time.Second: "a:[8 4 0 0 0 0 0 0 2 6]"} {
		got := loaddigest.Keys([]*loaddigest.ProxyLoad{
			age("own", own), age("old", 10*time.Second), {ID: "before", ReceivedAt: now}, {ID: "newer", Ignored: "nonsense"},
		}, "own", now)
		assert.Equal(t, "map[before:map[] old:map["+want+"] own:map[a:[8 4 0 0 0 0 0 0 2 6]]]", fmt.Sprint(got), got)
	}
}
