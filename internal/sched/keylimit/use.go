package keylimit

import (
	"slices"
	"strings"
	"sync"
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
	mu    sync.Mutex // guards known, and the uses in it
	known map[string]*use
}

// use is the use of one key.
type use struct {
	total   instance.KeyUse
	refused Amounts
	slots   [minutes]slot // by minute of the hour
}

// slot is the use in one minute since 1970.
type slot struct {
	minute int64
	instance.KeyUse
}

// add adds to the use of a key, and returns it. The caller holds mu.
func (u *uses) add(name string, n instance.KeyUse) *use {
	one := u.known[name]
	if one == nil && len(u.known) >= maxUses {
		name = otherKeys
		one = u.known[name]
	}
	if one == nil {
		if u.known == nil {
			u.known = map[string]*use{}
		}
		one = new(use)
		u.known[name] = one
	}
	minute := time.Now().Unix() / 60
	s := &one.slots[minute%minutes]
	if s.minute != minute {
		*s = slot{minute: minute}
	}
	s.Add(n)
	one.total.Add(n)
	return one
}

func (u *uses) refused(name string, kind Kind) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.add(name, instance.KeyUse{Refused: 1}).refused[kind]++
}

// Count counts a request that has ended and was not refused by a limit.
func (t *Table) Count(name string, u Usage) {
	t.use.mu.Lock()
	defer t.use.mu.Unlock()
	t.use.add(name, instance.KeyUse{Requests: 1, Input: int64(u.Input), Cached: int64(u.Cached), Output: int64(u.Output)})
}

// Totals is the use of one key since the start.
type Totals struct {
	instance.KeyUse
	Refused Amounts // by limit
}

// Each calls f for each key with its use since the start.
func (t *Table) Each(f func(name string, all Totals)) {
	t.use.mu.Lock()
	all := make(map[string]Totals, len(t.use.known))
	for name, one := range t.use.known {
		all[name] = Totals{one.total, one.refused}
	}
	t.use.mu.Unlock()
	for name, totals := range all {
		f(name, totals)
	}
}

// Usage returns the use of each key that was used in the last hour, and of each key with limits,
// ordered by name.
func (t *Table) Usage() []instance.KeyUsage {
	now := time.Now().Unix() / 60
	all := map[string]*instance.KeyUsage{}
	t.use.mu.Lock()
	for name, one := range t.use.known {
		is := &instance.KeyUsage{Key: name}
		for _, s := range one.slots {
			if s.minute > now-minutes && s.minute <= now { // the clock may have been set back
				is.Hour.Add(s.KeyUse)
			}
		}
		if is.Hour != (instance.KeyUse{}) {
			all[name] = is
		}
	}
	t.use.mu.Unlock()
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
