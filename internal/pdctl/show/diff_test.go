package show

import (
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/assert"

	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/sim/testkit/leak"
)

func TestMain(m *testing.M) { leak.Main(m) }

func entry(address string, rev int64, f func(*instance.Instance)) *instance.Instance {
	in := &instance.Instance{
		Key:         instance.Key{Role: instance.Decode, Address: address},
		Record:      instance.Record{ID: "a", State: instance.Ready, Models: []string{"m"}},
		Verified:    true,
		ModRevision: rev, CreateRevision: 1, Lease: 0x10,
	}
	if f != nil {
		f(in)
	}
	return in
}

func TestDiff(t *testing.T) {
	t.Parallel()
	ten := 10
	for _, tc := range []struct {
		name       string
		prev, next []*instance.Instance
		want       []string
	}{
		{name: "nothing", prev: []*instance.Instance{entry("a:1", 3, nil)}, next: []*instance.Instance{entry("a:1", 3, nil)}},
		{
			name: "new and removed",
			prev: []*instance.Instance{entry("a:1", 3, nil)},
			next: []*instance.Instance{entry("b:1", 4, nil)},
			want: []string{"+ 4 b:1 ", "- 9 a:1 "},
		},
		{
			name: "state and incarnation",
			prev: []*instance.Instance{entry("a:1", 3, nil)},
			next: []*instance.Instance{entry("a:1", 5, func(in *instance.Instance) {
				in.Record.State, in.Record.ID = instance.Down, "b\n"
			})},
			want: []string{`~ 5 a:1 state ready -> down; id a -> b\n`},
		},
		{
			name: "an override changes no key: the revision is the store's",
			prev: []*instance.Instance{entry("a:1", 3, nil)},
			next: []*instance.Instance{entry("a:1", 3, func(in *instance.Instance) { in.Intent = instance.Drain })},
			want: []string{"~ 9 a:1 intent - -> drain"},
		},
		{
			name: "registered again",
			prev: []*instance.Instance{entry("a:1", 3, nil)},
			next: []*instance.Instance{entry("a:1", 5, func(in *instance.Instance) { in.Lease = 0x11 })},
			want: []string{"~ 5 a:1 lease 10 -> 11"},
		},
		{
			name: "written again",
			prev: []*instance.Instance{entry("a:1", 3, nil)},
			next: []*instance.Instance{entry("a:1", 5, nil)},
			want: []string{"~ 5 a:1 rewritten"},
		},
		{
			name: "facts",
			prev: []*instance.Instance{entry("a:1", 3, nil)},
			next: []*instance.Instance{entry("a:1", 5, func(in *instance.Instance) {
				in.Record.Weight, in.Record.Labels, in.Record.Models = &ten, map[string]string{"z": "1", "a": "2"}, []string{"m", "n"}
			})},
			want: []string{"~ 5 a:1 models m -> m,n; weight 100 -> 10; labels - -> a=2,z=1"},
		},
		{
			name: "whose it is",
			prev: []*instance.Instance{entry("a:1", 3, nil)},
			next: []*instance.Instance{entry("a:1", 5, func(in *instance.Instance) { in.Record.Proxies = []string{"p1", "p2"} })},
			want: []string{"~ 5 a:1 for - -> p1,p2"},
		},
		{
			name: "promotion is two lines",
			prev: []*instance.Instance{entry("a:1", 3, func(in *instance.Instance) { in.View = instance.Pending })},
			next: []*instance.Instance{entry("a:1", 7, nil)},
			want: []string{"+ 7 a:1 ", "- 9 a:1 "},
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			var got []string
			for _, c := range diff(instance.NewSnapshot(2, tc.prev), instance.NewSnapshot(9, tc.next)) {
				got = append(got, c.kind+" "+itoa(c.revision)+" "+c.in.Address+" "+strings.Join(c.what, "; "))
			}
			assert.Empty(t, cmp.Diff(tc.want, got))
		})
	}
}

// A table always has the same columns. An intent hides neither the views of proxies nor the record.
func TestListTable(t *testing.T) {
	t.Parallel()
	var entries []*listed
	for _, in := range []*instance.Instance{
		entry("a:1", 3, func(in *instance.Instance) {
			in.Record.Models, in.Record.Connector, in.Lease = []string{"m", "n\x1b[2J", "o", "p"}, "nixl", 0
		}),
		entry("b:\u202e1", 4, func(in *instance.Instance) { in.View, in.Reason = instance.Rejected, "broken" }),
		entry("c:1", 5, func(in *instance.Instance) { in.Intent, in.Record.State = instance.Drain, instance.Down }),
		entry("d:1", 6, func(in *instance.Instance) {
			then := time.Now().Add(-3*time.Hour - time.Minute)
			in.Intent, in.View, in.Record.StartedAt = instance.Cordon, instance.Ejected, &then
		}),
	} {
		entries = append(entries, &listed{in, in.Listed("plain")})
	}
	three := int64(3)
	entries[2].InFlight = &three
	want := "ROLE    ADDRESS    STATE               AGE  IN FLIGHT  WEIGHT  KIND    MODELS           CONNECTOR        REASON\n" +
		`decode  a:1        ready               -    -          100     static  m,n\u001b[2J +2  nixl             -` + "\n" +
		`decode  b:\u202e1  rejected            -    -          100     leased  m                plain (default)  broken` + "\n" +
		`decode  c:1        draining (down)     -    3          100     leased  m                plain (default)  its engine fails the probes of its agent` + "\n" +
		`decode  d:1        cordoned (ejected)  3h   -          100     leased  m                plain (default)  -`
	assert.Empty(t, cmp.Diff(want, listTable(entries, false).Render()))
	for name, want := range map[string]string{"state": "d:1", "age": "d:1", "revision": "a:1"} {
		err := sortBy(entries, name)
		assert.True(t, err == nil && entries[0].Address == want, "by %s: %s, %v", name, entries[0].Address, err)
	}
}

func itoa(n int64) string { return strconv.FormatInt(n, 10) }
