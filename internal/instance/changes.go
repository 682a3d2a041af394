package instance

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
