package keylimit

import (
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pdmesh/pdmesh/internal/instance"
)

const (
	maxUses   = 256 // keys whose use is counted separately
	otherKeys = "other"
	minutes   = 60
)

// uses counts the use of keys. The first maxUses keys are counted separately, the rest as
// otherKeys.
type uses struct {
	known atomic.Pointer[map[string]*use]
	mu    sync.Mutex // serializes changes of known
}

// use is the use of one key.
type use struct {
	mu      sync.Mutex // guards the fields below
	total   instance.KeyUse
	refused Amounts
	slots   [minutes]slot // by minute of the hour
}

// slot is the use in one minute since 1970.
type slot struct {
	minute int64
	instance.KeyUse
}

// all returns the use by key. The map must not be changed.
func (u *uses) all() map[string]*use {
	if p := u.known.Load(); p != nil {
		return *p
	}
	return nil
}

func (u *uses) of(name string) *use {
	if one := u.all()[name]; one != nil {
		return one
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	known := u.all()
	if len(known) >= maxUses {
		name = otherKeys
	}
	if one := known[name]; one != nil {
		return one
	}
	next := map[string]*use{name: new(use)}
	maps.Copy(next, known)
	u.known.Store(&next)
	return next[name]
}

func (u *use) add(n instance.KeyUse) {
	minute := time.Now().Unix() / 60
	s := &u.slots[minute%minutes]
	if s.minute != minute {
		*s = slot{minute: minute}
	}
	s.Add(n)
	u.total.Add(n)
}

func (u *uses) refused(name string, kind Kind) {
	one := u.of(name)
	one.mu.Lock()
	defer one.mu.Unlock()
	one.add(instance.KeyUse{Refused: 1})
	one.refused[kind]++
}

// Count counts a request that has ended and was not refused by a limit.
func (t *Table) Count(name string, u Usage) {
	one := t.use.of(name)
	one.mu.Lock()
	defer one.mu.Unlock()
	one.add(instance.KeyUse{Requests: 1, Input: int64(u.Input), Cached: int64(u.Cached), Output: int64(u.Output)})
}

// Totals is the use of one key since the start.
type Totals struct {
	instance.KeyUse
	Refused Amounts // by limit
}

// Each calls f for each key with its use since the start.
func (t *Table) Each(f func(name string, all Totals)) {
	for name, one := range t.use.all() {
		one.mu.Lock()
		all := Totals{one.total, one.refused}
		one.mu.Unlock()
		f(name, all)
	}
}

// Usage returns the use of each key that was used in the last hour, and of each key with limits,
// ordered by name.
func (t *Table) Usage() []instance.KeyUsage {
	now := time.Now().Unix() / 60
	all := map[string]*instance.KeyUsage{}
	for name, one := range t.use.all() {
		is := &instance.KeyUsage{Key: name}
		one.mu.Lock()
		for _, s := range one.slots {
			if s.minute > now-minutes && s.minute <= now { // the clock may have been set back
				is.Hour.Add(s.KeyUse)
			}
		}
		one.mu.Unlock()
		if is.Hour != (instance.KeyUse{}) {
			all[name] = is
		}
	}
	for name, k := range t.keys() {
		is := all[name]
		if is == nil {
			is = &instance.KeyUsage{Key: name}
			all[name] = is
		}
		k.mu.Lock()
		is.InFlight, is.Limits = k.inFlight, new(k.limits)
		k.mu.Unlock()
	}
	out := make([]instance.KeyUsage, 0, len(all))
	for _, is := range all {
		out = append(out, *is)
	}
	slices.SortFunc(out, func(a, b instance.KeyUsage) int { return strings.Compare(a.Key, b.Key) })
	return out
}
