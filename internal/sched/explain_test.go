package sched_test

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pdmesh/pdmesh/internal/connector"
	"github.com/pdmesh/pdmesh/internal/forward/bypass"
	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/internal/sched"
)

// counted returns all counters that picks change.
func counted(s *sched.Scheduler) (out []string) {
	s.Tally.Picks.Each(func(role instance.Role, by string, n uint64) { out = append(out, fmt.Sprint(role, by, n)) })
	s.Tally.Both.Each(func(role instance.Role, reason string, n uint64) { out = append(out, fmt.Sprint(role, reason, n)) })
	s.Tally.Elsewhere.Each(func(role instance.Role, reason string, n uint64) { out = append(out, fmt.Sprint(role, reason, n)) })
	s.Loads.Totals(func(k instance.Key, t sched.Total) { out = append(out, fmt.Sprint(k, t)) })
	slices.Sort(out)
	return out
}

// With every policy, Explain returns the instance that is picked next, and changes no counter.
func TestExplain_MatchesPick(t *testing.T) {
	t.Parallel()
	eachPolicy(t, func(t *testing.T, name string) {
		list := []*instance.Instance{inst(instance.Prefill, "d:1"), inst(instance.Decode, "d:1")} // in both roles
		for _, a := range []string{"a:1", "b:1", "c:1", "e:1"} {
			list = append(list, inst(instance.Prefill, a), inst(instance.Decode, a+"1"))
		}
		s, _ := chosenBy(t, name, sick{{Role: instance.Prefill, Address: "e:1"}: true}, true, list...)
		s.Explain(sched.Request{Role: instance.Prefill, Model: "m"}) // the first call creates the counters
		var held []*sched.Assignment
		for i := range 120 {
			chat := i * i % 7
			r := sched.Request{
				Role: instance.Prefill, Model: "m", Prompt: []byte(strings.Repeat(fmt.Sprint("chat-", chat), 100+i)),
				TokensIdentifyCache: true, Session: strings.Repeat("s", i%3*chat),
			}
			before := counted(s)
			e := s.Explain(r)
			now := counted(s)
			require.True(t, reflect.DeepEqual(before, now), "counted %v, before %v", now, before)
			a, err := s.Pick(r)
			require.True(t, err == nil && e.Err == nil, "%v %v", err, e.Err)
			if e.Policy != a.Policy || e.Assignment.Tokens != a.Tokens || e.Revision != a.Revision {
				t.Fatalf("explained %s, %d tokens at %d, picked %s, %d at %d", e.Policy, e.Assignment.Tokens, e.Revision, a.Policy, a.Tokens, a.Revision)
			}
			of := policyNamed(t, a.Policy)
			if !of.Draws && (e.Assignment.Instance != a.Instance || e.Assignment.Cached != a.Cached) {
				t.Fatalf("request %d: %s with %d tokens explained, %s with %d picked", i, e.Assignment.Instance.Key, e.Assignment.Cached, a.Instance.Key, a.Cached)
			}
			chosen, scores := 0, 0
			for _, c := range e.Candidates {
				if c.Chosen {
					chosen++
				}
				scores += len(c.Scores)
				require.Equal(t, c.Address == "e:1", c.Out == sched.OutSilent, "%s is out: %q", c.Address, c.Out)
			}
			require.True(t, chosen == 1 && scores != 0 && len(e.Candidates) == 5,
				"%d chosen, %d scores, %d candidates", chosen, scores, len(e.Candidates))
			if held = append(held, a); len(held) > 3 {
				held[0].Done()
				held = held[1:]
			}
		}
	})
}

// A tentative pick is counted when it is confirmed.
func TestTentativePick(t *testing.T) {
	t.Parallel()
	s, _ := chosenBy(t, "prefix", nil, false, inst(instance.Prefill, "a:1"), inst(instance.Decode, "d:1"))
	r := sched.Request{Role: instance.Prefill, Model: "m", Prompt: []byte(strings.Repeat("text", 500)), Tentative: true}
	s.Explain(r) // the first call creates the counters
	before := counted(s)
	for range 2 {
		a, err := s.Pick(r)
		require.True(t, err == nil && a.Cached == 0, "%v %v", a.Cached, err)
		a.Done()
	}
	now := counted(s)
	assert.True(t, reflect.DeepEqual(before, now), "counted %v, before %v", now, before)
	a, _ := s.Pick(r)
	a.Confirm()
	a.Confirm()
	a.Done()
	picks := uint64(0)
	s.Tally.Picks.Each(func(_ instance.Role, _ string, n uint64) { picks += n })
	of := map[instance.Key]uint64{}
	s.Loads.Picks(func(k instance.Key, n uint64) { of[k] = n })
	if again, _ := s.Pick(r); again.Cached == 0 || picks != 1 || of[a.Instance.Key] != 1 {
		t.Errorf("%d tokens of what was computed, %d picks: %v", again.Cached, picks, of)
	}
}

// Explain lists every instance of the role, with the reason why it cannot be picked.
func TestExplain_ReasonsOfExcluded(t *testing.T) {
	t.Parallel()
	version := func(v string) func(*instance.Instance) {
		return func(in *instance.Instance) { in.Record.Version = v }
	}
	change := func(f func(*instance.Instance)) func(*instance.Instance) { return f }
	src := &source{}
	src.set(
		inst(instance.Prefill, "fit:1", version("1")),
		inst(instance.Prefill, "version:1", version("2")),
		inst(instance.Prefill, "blocks:1", version("1"), change(func(in *instance.Instance) { in.Record.BlockSize = 32 })),
		inst(instance.Prefill, "dialect:1", change(func(in *instance.Instance) { in.Record.Connector = "nixl" })),
		inst(instance.Prefill, "none:1", change(func(in *instance.Instance) { in.Record.Connector = "" })),
		inst(instance.Prefill, "other:1", change(func(in *instance.Instance) { in.Record.Models = []string{"x"} })),
		inst(instance.Prefill, "cordoned:1", change(func(in *instance.Instance) { in.Intent = instance.Cordon })),
		inst(instance.Prefill, "starting:1", change(func(in *instance.Instance) { in.Record.State = instance.Starting })),
		inst(instance.Prefill, "weightless:1", weighing(0)),
		inst(instance.Prefill, "tried:1", version("1")),
		inst(instance.Prefill, "sick:1", version("1")),
		inst(instance.Prefill, "slow:1", version("1"), change(func(in *instance.Instance) { in.Record.State, in.Record.Cause = instance.Down, instance.CauseSlow })),
		inst(instance.Prefill, "rejected:1", change(func(in *instance.Instance) { in.View = instance.Rejected })),
		inst(instance.Decode, "d:1", version("1"), change(func(in *instance.Instance) { in.Record.BlockSize = 16 })),
	)
	s := sched.New(sched.Options{
		Source: src, Health: sick{{Role: instance.Prefill, Address: "sick:1"}: true},
		PairKey: func(in *instance.Instance) connector.PairKey {
			return connector.PairKey{Connector: in.Record.Connector, Build: in.Record.Version, Blocks: in.Record.BlockSize}
		},
	})
	r := sched.Request{Role: instance.Prefill, Model: "m", Tried: []instance.Key{{Role: instance.Prefill, Address: "tried:1"}}}
	want := map[string]string{
		"fit:1": "", "version:1": bypass.VersionMismatch, "blocks:1": bypass.BlockMismatch, "dialect:1": bypass.ConnectorMismatch, "none:1": sched.OutConnector, "other:1": sched.OutModel,
		"cordoned:1": "cordon", "starting:1": "starting", "weightless:1": "weight_0", "tried:1": sched.OutTried, "sick:1": sched.OutSilent,
		"slow:1": sched.OutSlow, "rejected:1": "rejected",
	}
	got := map[string]string{}
	e := s.Explain(r)
	for _, c := range e.Candidates {
		got[c.Address] = c.Out
	}
	assert.True(t, reflect.DeepEqual(got, want) && e.Err == nil, "got %v, %v\nwant %v", got, e.Err, want)
	r.Tried = append(r.Tried, instance.Key{Role: instance.Prefill, Address: "fit:1"}, instance.Key{Role: instance.Prefill, Address: "sick:1"}, instance.Key{Role: instance.Prefill, Address: "slow:1"})
	if e = s.Explain(r); !errors.Is(e.Err, sched.ErrVersions) || e.Assignment != nil || e.Policy != "" {
		t.Errorf("no instance is left: %v, %+v", e.Err, e.Assignment)
	}
	if e = s.Explain(sched.Request{Role: instance.Prefill, Model: "y"}); !errors.Is(e.Err, sched.ErrUnknownModel) || len(e.Candidates) != 13 {
		t.Errorf("unknown model: %v, %d candidates", e.Err, len(e.Candidates))
	}
}

// Explain returns the error of Pick for a model that only one role or no usable instance serves.
func TestExplain_AbsentModel(t *testing.T) {
	t.Parallel()
	s, _ := build(nil, inst(instance.Prefill, "p:1", serving("m", "p")), inst(instance.Decode, "d:1", serving("m", "d")))
	for _, model := range []string{"m", "p", "d", "x"} {
		for _, role := range instance.Roles() {
			r := sched.Request{Role: role, Model: model}
			a, err := s.Pick(r)
			if e := s.Explain(r); !errors.Is(e.Err, err) || (e.Assignment == nil) != (a == nil) {
				t.Errorf("%s of %s: explained %v, %v, picked %v, %v", role, model, e.Assignment, e.Err, a, err)
			}
			a.Done()
		}
	}
}
