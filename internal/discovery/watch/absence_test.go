package watch

import (
	"testing"
	"time"

	"github.com/pdmesh/pdmesh/internal/discovery/schema"
	"github.com/pdmesh/pdmesh/internal/instance"
)

// What becomes of an entry whose key is gone, for every kind of entry and of loss.
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
	leased := record(nil)
	static := record(func(e *entry) { e.leased = 0 })
	override := record(func(e *entry) { e.Kind, e.leased = schema.KindOverride, 0 })
	unproven := record(func(e *entry) { e.absent = &absence{kind: loaded} })
	for name, tc := range map[string]struct {
		e    *entry
		l    loss
		want absenceKind
	}{
		"a lease may have ended":             {leased, loss{serving: true}, asking},
		"another store has no leases":        {leased, loss{serving: true, replaced: true}, orphaned},
		"from the disk, not proven":          {unproven, loss{serving: true}, orphaned},
		"it was of no use":                   {leased, loss{}, goes},
		"it was leaving":                     {record(func(e *entry) { e.rec.State = instance.Draining }), loss{serving: true}, goes},
		"an operator removed it":             {leased, loss{serving: true, removed: true}, goes},
		"its value is bad":                   {record(func(e *entry) { e.good = false }), loss{serving: true}, goes},
		"a pending add":                      {record(func(e *entry) { e.Kind = schema.KindPending }), loss{replaced: true}, goes},
		"a static record is deleted":         {static, loss{serving: true}, goes},
		"a static record, another store":     {static, loss{replaced: true}, kept},
		"the same, but removed":              {static, loss{replaced: true, removed: true}, goes},
		"of a former life's command line":    {record(func(e *entry) { e.leased, e.rec.Source, e.absent = 0, schema.SourceFlags, &absence{kind: loaded} }), loss{replaced: true}, goes},
		"of this life's command line":        {record(func(e *entry) { e.leased, e.rec.Source = 0, schema.SourceFlags }), loss{replaced: true}, kept},
		"an override is lifted":              {override, loss{}, goes},
		"an override, another store":         {override, loss{replaced: true, removed: true}, kept},
		"an override for a time, same store": {record(func(e *entry) { e.Kind = schema.KindOverride }), loss{}, goes},
		"an override for a time, another":    {record(func(e *entry) { e.Kind = schema.KindOverride }), loss{replaced: true}, goes},
	} {
		tc.l.probing, tc.l.gone = true, 9
		a := tc.e.onKeyGone(tc.l)
		switch {
		case a == nil && tc.want != goes, a != nil && a.kind != tc.want:
			t.Errorf("%s: %+v, want kind %d", name, a, tc.want)
		case a != nil && (a.gone == 0) != tc.l.replaced:
			t.Errorf("%s: gone at %d", name, a.gone)
		case a != nil && a.proven != (tc.e.absent == nil):
			t.Errorf("%s: proven %t", name, a.proven)
		}
		tc.l.probing = false
		if a := tc.e.onKeyGone(tc.l); a != nil {
			t.Errorf("%s: %+v although nobody can ask it", name, a)
		}
	}
}

// What etcd, probes and time make of an absence.
func TestAbsenceGoesOn(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		alive, massLoss bool
		want            *absence
	}{
		{false, false, &absence{kind: orphaned, gone: 9, proven: true}},
		{false, true, &absence{kind: orphaned, gone: 9, proven: true}},
		{true, true, &absence{kind: orphaned, gone: 9, proven: true, held: true}},
		{true, false, nil},
	} {
		got := absence{kind: asking, gone: 9, proven: true}.onLeaseAnswer(tc.alive, tc.massLoss)
		if (got == nil) != (tc.want == nil) || got != nil && *got != *tc.want {
			t.Errorf("lease alive %t, mass loss %t: %+v, want %+v", tc.alive, tc.massLoss, got, tc.want)
		}
	}
	for kind, want := range map[absenceKind]absenceKind{asking: orphaned, orphaned: orphaned, kept: kept, loaded: loaded} {
		if got := (absence{kind: kind, gone: 9}).onStoreReplaced(); got.kind != want || got.gone != 0 {
			t.Errorf("kind %d in another store: %+v", kind, got)
		}
	}
	a := &absence{kind: orphaned, proven: true}
	for i, step := range []struct{ answered, proven bool }{
		{false, true}, {false, false}, {false, false}, {true, true}, {false, true}, {true, true}, {false, true}, {false, false},
	} {
		if a = a.onProbe(step.answered); a.proven != step.proven {
			t.Errorf("probe %d: %+v", i, a)
		}
	}
}

// When an absent instance goes: of the kinds an orphan alone, and only while etcd is followed.
func TestAbsenceEnds(t *testing.T) {
	t.Parallel()
	late := surrounding{followed: true, quorum: true, age: time.Minute, grace: time.Minute}
	for _, kind := range []absenceKind{asking, orphaned, kept, loaded} {
		for name, tc := range map[string]struct {
			failed int
			change func(*surrounding)
			goes   bool // of an orphan
			all    bool // of every kind
		}{
			"removed":           {change: func(s *surrounding) { *s = surrounding{removed: true} }, goes: true, all: true},
			"grace is over":     {goes: true},
			"grace is not":      {change: func(s *surrounding) { s.age-- }},
			"no quorum":         {change: func(s *surrounding) { s.quorum = false }},
			"it fails":          {failed: orphanFailures, change: func(s *surrounding) { s.quorum = false }, goes: true},
			"it fails once":     {failed: orphanFailures - 1, change: func(s *surrounding) { s.quorum = false }},
			"etcd is not there": {failed: orphanFailures, change: func(s *surrounding) { s.followed = false }},
		} {
			s := late
			if tc.change != nil {
				tc.change(&s)
			}
			why := (&absence{kind: kind, failed: tc.failed}).ends(s)
			if want := tc.all || tc.goes && kind == orphaned; (why != "") != want {
				t.Errorf("kind %d, %s: %q", kind, name, why)
			}
		}
	}
}
