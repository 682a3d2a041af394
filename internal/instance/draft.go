package instance

import "slices"

// Draft is a mutable membership from which snapshots are made. Apart from moving and
// copying pointers, the cost of a change does not depend on the number of entries.
// Snapshots share the entries that have not changed. The zero Draft is empty. It is
// not safe for concurrent use.
type Draft struct {
	all    list
	usable [2]list
}

// list is one sorted slice of a Draft.
type list struct {
	items []*Instance
	out   bool // a snapshot has it: it is copied before it is changed
}

// Reset replaces the entries of the draft, and takes over the slice. A slice that is
// already in order (prefill first, then by address) is not sorted.
func (d *Draft) Reset(all []*Instance) {
	if !slices.IsSortedFunc(all, compare) {
		slices.SortFunc(all, compare)
	}
	var n [2]int
	for _, in := range all {
		if in.Usable() {
			n[in.Role.Index()]++
		}
	}
	d.all = list{items: all}
	for i := range d.usable {
		d.usable[i] = list{items: make([]*Instance, 0, n[i])}
	}
	for _, in := range all {
		if in.Usable() {
			l := &d.usable[in.Role.Index()]
			l.items = append(l.items, in)
		}
	}
}

// Replace puts is in the place of was. Without was it is added, without is the
// former is taken out. An entry that the draft does not hold is not missed.
func (d *Draft) Replace(was, is *Instance) {
	if was == is {
		return
	}
	d.all.replace(was, is)
	for i := range d.usable {
		d.usable[i].replace(usableAt(was, i), usableAt(is, i))
	}
}

// usableAt is the instance if it belongs into the list of the usable ones of
// a role, else nil.
func usableAt(in *Instance, i int) *Instance {
	if in == nil || in.Role.Index() != i || !in.Usable() {
		return nil
	}
	return in
}

// Snapshot returns the draft as it is now.
func (d *Draft) Snapshot(revision int64) *Snapshot {
	s := &Snapshot{Revision: revision, all: d.all.publish(), changed: make(chan struct{})}
	for i := range d.usable {
		s.usable[i] = d.usable[i].publish()
	}
	return s
}

// publish returns the items; their capacity is cut, so that no caller appends
// to what others read.
func (l *list) publish() []*Instance {
	l.out = true
	return slices.Clip(l.items)
}

// own makes the items the draft's own, with room for one more.
func (l *list) own() {
	if l.out {
		l.items, l.out = append(make([]*Instance, 0, len(l.items)+1), l.items...), false
	}
}

func (l *list) replace(was, is *Instance) {
	at, found := -1, false
	if was != nil {
		at, found = l.find(was)
	}
	switch {
	case found && is != nil && l.fits(at, is):
		l.own()
		l.items[at] = is
		return
	case found:
		l.own()
		l.items = slices.Delete(l.items, at, at+1)
	}
	if is == nil {
		return
	}
	l.own()
	at, _ = slices.BinarySearchFunc(l.items, is, compare)
	l.items = slices.Insert(l.items, at, is)
}

// find returns the position of the entry in, compared by pointer.
func (l *list) find(in *Instance) (int, bool) {
	at, _ := slices.BinarySearchFunc(l.items, in, compare)
	for ; at < len(l.items) && compare(l.items[at], in) == 0; at++ {
		if l.items[at] == in {
			return at, true
		}
	}
	return 0, false
}

// fits reports whether an entry can take a place without disturbing the order.
func (l *list) fits(at int, in *Instance) bool {
	return (at == 0 || compare(l.items[at-1], in) < 0) &&
		(at == len(l.items)-1 || compare(in, l.items[at+1]) < 0)
}

// Changes calls f for every membership and every pending add in which a later
// snapshot differs from an earlier one, in the order of snapshots: was is nil
// for what came, is for what went. Entries that both share cost a comparison
// of two pointers. A nil snapshot is empty.
func Changes(before, after *Snapshot, f func(was, is *Instance)) {
	var a, b []*Instance
	if before != nil {
		a = before.all
	}
	if after != nil {
		b = after.all
	}
	if len(a) == len(b) && (len(a) == 0 || &a[0] == &b[0]) {
		return
	}
	for {
		for len(a) > 0 && len(b) > 0 && a[0] == b[0] {
			a, b = a[1:], b[1:]
		}
		if len(a) == 0 && len(b) == 0 {
			return
		}
		key := firstKey(a, b)
		before, after := sameKey(a, key), sameKey(b, key)
		pairUp(a[:before], b[:after], f)
		a, b = a[before:], b[after:]
	}
}

// firstKey is the lesser one of the keys that two lists begin with; one of
// them is not empty.
func firstKey(a, b []*Instance) Key {
	switch {
	case len(a) == 0:
		return b[0].Key
	case len(b) == 0 || a[0].Key.Compare(b[0].Key) <= 0:
		return a[0].Key
	default:
		return b[0].Key
	}
}

// sameKey counts the entries of one key that a list begins with.
func sameKey(list []*Instance, k Key) int {
	n := 0
	for n < len(list) && list[n].Key == k {
		n++
	}
	return n
}

// pairUp finds for each entry of one key the one that it became: a membership
// is not continued by a pending add, nor the other way round. There are one or
// two of each.
func pairUp(a, b []*Instance, f func(was, is *Instance)) {
	next := func(list []*Instance, from int, pending bool) int {
		for from < len(list) && (list[from].View == Pending) != pending {
			from++
		}
		return from
	}
	for _, pending := range []bool{false, true} {
		i, j := next(a, 0, pending), next(b, 0, pending)
		for i < len(a) || j < len(b) {
			var was, is *Instance
			if i < len(a) {
				was, i = a[i], next(a, i+1, pending)
			}
			if j < len(b) {
				is, j = b[j], next(b, j+1, pending)
			}
			if was != is {
				f(was, is)
			}
		}
	}
}
