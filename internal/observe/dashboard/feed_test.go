package dashboard

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pdmesh/pdmesh/internal/instance"
)

// The feed describes the changes of an instance.
func TestFeed_InstanceChanges(t *testing.T) {
	t.Parallel()
	with := func(change ...func(*instance.Instance)) *instance.Instance {
		return member(instance.Decode, "a:1", change...)
	}
	state := func(s instance.State) func(*instance.Instance) {
		return func(in *instance.Instance) { in.Record.State = s }
	}
	view := func(v instance.View, why string) func(*instance.Instance) {
		return func(in *instance.Instance) { in.View, in.Reason = v, why }
	}
	intent := func(i instance.Intent, why string) func(*instance.Instance) {
		return func(in *instance.Instance) { in.Intent, in.Reason = i, why }
	}
	weight := func(w int) func(*instance.Instance) { return func(in *instance.Instance) { in.Record.Weight = &w } }
	life := func(in *instance.Instance) { in.Record.ID = "another" }
	slow := func(in *instance.Instance) { in.Record.State, in.Record.Cause = instance.Down, instance.CauseSlow }
	pending := view(instance.Pending, "")
	for _, tc := range []struct {
		name    string
		was, is *instance.Instance
		want    string // kind and text of each, separated by semicolons
	}{
		{"joined", nil, with(), "good joined"},
		{"joined while it starts", nil, with(state(instance.Starting)), "plain joined, starting"},
		{"joined with an invalid record", nil, with(view(instance.Rejected, "no JSON")), "plain joined, rejected"},
		{"pending", nil, with(pending), "plain was added, and does not respond yet"},
		{"no longer pending", with(pending), nil, ""},
		{"left", with(), nil, "bad left"},
		{"left after its drain", with(state(instance.Draining)), nil, "bad left after its drain"},
		{"was removed", with(intent(instance.Removed, "")), nil, "bad left (removed)"},
		{"orphan that left", with(view(instance.Orphan, "")), nil, "bad left: its lease was lost, and it no longer responds"},
		{"is down", with(), with(state(instance.Down)), "bad is down"},
		{"is slow", with(), with(slow), "bad is slow"},
		{"ready again", with(state(instance.Down)), with(), "good is ready again"},
		{"lost its lease", with(), with(view(instance.Orphan, "expired")), "plain is orphan: expired"},
		{"drained by an operator", with(), with(intent(instance.Drain, "disks\x1b")), `bad is drained by an operator: disks\u001b`},
		{"cordoned", with(), with(intent(instance.Cordon, "")), "bad is cordoned"},
		{"drain lifted", with(intent(instance.Drain, "")), with(), "good drain was lifted"},
		{"restarted", with(), with(life), "plain restarted"},
		{"weight 50", with(), with(weight(50)), "plain weight changed from 100 to 50"},
		{"weight 0", with(), with(weight(0)), "bad is at weight 0; plain weight changed from 100 to 0"},
		{"the same", with(), with(), ""},
	} {
		var got []string
		for _, c := range changes(tc.was, tc.is) {
			assert.Equal(t, "a:1", c.Who, tc.name)
			assert.Equal(t, instance.Decode, c.Role, tc.name)
			got = append(got, c.Kind+" "+c.Text)
		}
		assert.Equal(t, tc.want, strings.Join(got, "; "), tc.name)
	}
}

func TestFeedKeepsTheLast(t *testing.T) {
	t.Parallel()
	var f feed
	empty := instance.NewSnapshot(0, nil)
	f.follow(empty, instance.NewSnapshot(7, []*instance.Instance{member(instance.Decode, "a:1"), member(instance.Prefill, "b:1")}), time.Now())
	require.Len(t, f.all, 1, "at first")
	assert.Contains(t, f.all[0].Text, "2 entries")
	for range maxFeed + 20 {
		f.add(Change{Text: "x"}, time.Now())
	}
	assert.True(t, len(f.all) == maxFeed && f.all[0].N == 22 && f.n == maxFeed+21,
		"%d entries from %d on", len(f.all), f.all[0].N)
	got := f.since(f.n - 2)
	assert.True(t, len(got) == 2 && got[1].N == f.n, "the last two are %+v", got)
	got = f.until(30)
	assert.True(t, len(got) == 9 && got[8].N == 30, "up to 30 there are %d", len(got))
	assert.True(t, f.since(f.n) == nil && f.until(3) == nil, "there is something where nothing is")
}
