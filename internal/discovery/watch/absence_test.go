package watch

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/pdmesh/pdmesh/internal/discovery/schema"
	"github.com/pdmesh/pdmesh/internal/instance"
)

// The absence of an entry whose key is missing, for every kind of entry and of loss.
func TestAbsenceBegins(t *testing.T) {
	t.Parallel()
	const goes = absenceKind(0)
	record := func(change func(*entry)) *entry {
		e := &entry{Name: schema.Name{Kind: schema.KindInstance}, good: true, leased: 7, rec: instance.Record{State: instance.Ready}}
		if change != nil {
			change(e)
		}
		return e
	}
	state := func(is instance.State, cause string) *entry {
		return record(func(e *entry) { e.rec.State, e.rec.Cause = is, cause })
	}
	leased := record(nil)
	static := record(func(e *entry) { e.leased = 0 })
	override := record(func(e *entry) { e.Kind, e.leased = schema.KindOverride, 0 })
	unproven := record(func(e *entry) { e.absent = &absence{kind: loaded} })
	for name, tc := range map[string]struct {
		e    *entry
		l    loss
		want absenceKind
	}{
		"a lease may have ended":             {leased, loss{}, leaseQueried},
		"another store has no leases":        {leased, loss{replaced: true}, orphaned},
		"from the disk, not proven":          {unproven, loss{}, orphaned},
		"from the disk, and etcd is trusted": {unproven, loss{unused: true}, goes},
		"rejected":                           {leased, loss{unused: true}, goes},
		"slow":                               {state(instance.Down, instance.CauseSlow), loss{}, leaseQueried},
		"starting":                           {state(instance.Starting, ""), loss{}, leaseQueried},
		"draining":                           {state(instance.Draining, ""), loss{}, goes},
		"draining, after a stall":            {state(instance.Draining, ""), loss{doubtful: true}, leaseQueried},
		"down":                               {state(instance.Down, ""), loss{}, goes},
		"down, after a stall":                {state(instance.Down, ""), loss{doubtful: true}, leaseQueried},
		"removed, after a stall":             {leased, loss{removed: true, doubtful: true}, goes},
		"an operator removed it":             {leased, loss{removed: true}, goes},
		"its value is bad":                   {record(func(e *entry) { e.good = false }), loss{}, goes},
		"a pending add":                      {record(func(e *entry) { e.Kind = schema.KindPending }), loss{replaced: true}, goes},
		"a static record is deleted":         {static, loss{}, goes},
		"a static record, another store":     {static, loss{replaced: true}, kept},
		"the same, but removed":              {static, loss{replaced: true, removed: true}, goes},
		"of a former life's command line":    {record(func(e *entry) { e.leased, e.rec.Source, e.absent = 0, schema.SourceFlags, &absence{kind: loaded} }), loss{replaced: true}, goes},
		"of this life's command line":        {record(func(e *entry) { e.leased, e.rec.Source = 0, schema.SourceFlags }), loss{replaced: true}, kept},
		"an override is lifted":              {override, loss{}, goes},
		"an override, another store":         {override, loss{replaced: true, removed: true}, kept},
		"an override for a time, same store": {record(func(e *entry) { e.Kind = schema.KindOverride }), loss{}, goes},
		"an override for a time, another":    {record(func(e *entry) { e.Kind = schema.KindOverride }), loss{replaced: true}, goes},
	} {
		tc.l.probing, tc.l.lostAt, tc.l.verified = true, 9, true
		a := tc.e.onKeyLost(tc.l)
		switch {
		case a == nil && tc.want != goes, a != nil && a.kind != tc.want:
			t.Errorf("%s: %+v, want kind %d", name, a, tc.want)
		case a != nil && (a.lostAt == 0) != tc.l.replaced:
			t.Errorf("%s: lost at %d", name, a.lostAt)
		case a != nil && a.proven != (tc.e.absent == nil):
			t.Errorf("%s: proven %t", name, a.proven)
		}
		tc.l.verified = false
		a = tc.e.onKeyLost(tc.l)
		assert.False(t, a != nil && a.kind != kept && a.proven, "%s: proven although it was not verified", name)
		tc.l.probing = false
		a = tc.e.onKeyLost(tc.l)
		assert.True(t, a == nil, "%s: %+v although nothing can probe it", name, a)
	}
}

// How answers of etcd, probes and time change an absence.
func TestAbsenceContinues(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		alive, massLoss bool
		want            *absence
	}{
		{false, false, &absence{kind: orphaned, lostAt: 9, proven: true}},
		{false, true, &absence{kind: orphaned, lostAt: 9, proven: true}},
		{true, true, &absence{kind: orphaned, lostAt: 9, proven: true, held: true}},
		{true, false, nil},
	} {
		got := absence{kind: leaseQueried, lostAt: 9, proven: true}.onLeaseAnswer(tc.alive, tc.massLoss)
		assert.True(t, (got == nil) == (tc.want == nil) && (got == nil || *got == *tc.want),
			"lease alive %t, mass loss %t: %+v, want %+v", tc.alive, tc.massLoss, got, tc.want)
	}
	for kind, want := range map[absenceKind]absenceKind{leaseQueried: orphaned, orphaned: orphaned, kept: kept, loaded: loaded} {
		got := (absence{kind: kind, lostAt: 9}).onStoreReplaced()
		assert.True(t, got.kind == want && got.lostAt == 0, "kind %d in another store: %+v", kind, got)
	}
	a, now := &absence{kind: orphaned, proven: true}, time.Now()
	for i, step := range []struct {
		is          outcome
		alternative bool
		proven      bool
	}{
		{refused, false, true}, {refused, false, false}, {refused, false, false}, {answered, false, true},
		{refused, true, true}, {answered, true, true}, {refused, true, true}, {refused, true, false}, {answered, true, true},
		{unanswered, false, true}, {unanswered, false, true}, {unanswered, true, false}, {answered, true, true},
		{unanswered, true, true}, {refused, true, true}, {refused, false, false},
	} {
		a = a.onProbe(step.is, step.alternative, now)
		assert.Equal(t, step.proven, a.proven, "probe %d: %+v", i, a)
	}
	a.answered = now.Add(-time.Hour)
	if b := a.onResume(now); b.failed != 0 || b.silent != 0 || !b.since.Equal(now) || !b.answered.Equal(now) || b.proven != a.proven {
		t.Errorf("after a suspension: %+v", b)
	}
}

// An absent instance is dropped only if it is an orphan, and only while etcd is followed.
func TestAbsenceEnds(t *testing.T) {
	t.Parallel()
	now := time.Now()
	for _, kind := range []absenceKind{leaseQueried, orphaned, kept, loaded} {
		for name, tc := range map[string]struct {
			failed, silent int
			change         func(*endConditions)
			age            time.Duration // of the absence; the grace is a minute
			goes           bool          // whether an orphan is dropped
			all            bool          // whether every kind is dropped
		}{
			"removed":                   {change: func(s *endConditions) { *s = endConditions{removed: true} }, goes: true, all: true},
			"grace is over":             {age: time.Minute, goes: true},
			"grace is not over":         {age: time.Minute - 1},
			"no quorum":                 {age: time.Minute, change: func(s *endConditions) { s.quorum = false }},
			"no quorum, of no use":      {age: time.Minute, change: func(s *endConditions) { s.quorum, s.pickable = false, false }, goes: true},
			"it fails":                  {failed: orphanFailures, change: func(s *endConditions) { s.quorum, s.alternative = false, false }, goes: true},
			"it fails once":             {failed: orphanFailures - 1},
			"it is silent":              {silent: orphanFailures, goes: true},
			"it is silent, as all are":  {silent: orphanFailures, change: func(s *endConditions) { s.quorum, s.alternative = false, false }},
			"it is silent for a minute": {silent: orphanFailures, age: time.Minute, change: func(s *endConditions) { s.quorum, s.alternative = false, false }, goes: true},
			"etcd is not there":         {failed: orphanFailures, silent: orphanFailures, age: time.Hour, change: func(s *endConditions) { s.followed = false }},
		} {
			s := endConditions{followed: true, quorum: true, alternative: true, pickable: true, now: now, grace: time.Minute}
			if tc.change != nil {
				tc.change(&s)
			}
			why := (&absence{kind: kind, failed: tc.failed, silent: tc.silent, since: now.Add(-tc.age)}).ends(s)
			assert.Equal(t, tc.all || tc.goes && kind == orphaned, why != "", "kind %d, %s: %q", kind, name, why)
		}
	}
}
