package show

import (
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

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
			if d := cmp.Diff(tc.want, got); d != "" {
				t.Error(d)
			}
		})
	}
}

func TestListTable(t *testing.T) {
	t.Parallel()
	plain := instance.NewSnapshot(9, []*instance.Instance{entry("a:1", 3, nil)})
	want := "ROLE    ADDRESS  STATE  KIND    MODELS  SOURCE  REVISION\n" +
		"decode  a:1      ready  leased  m       -       3"
	if d := cmp.Diff(want, listTable(plain, "", false).Render()); d != "" {
		t.Error(d)
	}
	full := instance.NewSnapshot(9, []*instance.Instance{
		entry("a:1", 3, func(in *instance.Instance) {
			in.Record.Models, in.Record.Connector, in.Lease = []string{"m", "n\x1b[2J", "o", "p"}, "nixl", 0
		}),
		entry("b:\u202e1", 4, func(in *instance.Instance) { in.View, in.Reason = instance.Rejected, "broken" }),
	})
	want = "ROLE    ADDRESS    STATE     KIND    MODELS           CONNECTOR        SOURCE  REVISION  REASON\n" +
		`decode  a:1        ready     static  m,n\u001b[2J +2  nixl             -       3         -` + "\n" +
		`decode  b:\u202e1  rejected  leased  m                plain (default)  -       4         broken`
	if d := cmp.Diff(want, listTable(full, "plain", false).Render()); d != "" {
		t.Error(d)
	}
	// An intent hides neither what proxies see nor what the record says.
	hidden := instance.NewSnapshot(9, []*instance.Instance{
		entry("a:1", 3, func(in *instance.Instance) { in.Intent, in.Record.State = instance.Drain, instance.Down }),
		entry("b:1", 4, func(in *instance.Instance) { in.Intent, in.View = instance.Cordon, instance.Ejected }),
	})
	want = "ROLE    ADDRESS  STATE   VIEW     RECORD  KIND    MODELS  SOURCE  REVISION\n" +
		"decode  a:1      drain   -        down    leased  m       -       3\n" +
		"decode  b:1      cordon  ejected  -       leased  m       -       4"
	if d := cmp.Diff(want, listTable(hidden, "", false).Render()); d != "" {
		t.Error(d)
	}
	owned := instance.NewSnapshot(9, []*instance.Instance{
		entry("a:1", 3, func(in *instance.Instance) { in.Record.Proxies = []string{"p1", "p2"} }), entry("b:1", 4, nil),
	})
	want = "ROLE    ADDRESS  STATE  KIND    MODELS  SOURCE  PROXIES  REVISION\n" +
		"decode  a:1      ready  leased  m       -       p1,p2    3\n" +
		"decode  b:1      ready  leased  m       -       -        4"
	if d := cmp.Diff(want, listTable(owned, "", false).Render()); d != "" {
		t.Error(d)
	}
}

func itoa(n int64) string { return strconv.FormatInt(n, 10) }
