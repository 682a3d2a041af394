package instance

// Changes calls f for every membership and every pending add that differs between two
// snapshots, in the order of snapshots. was is nil for an added entry, is for a removed
// one. A membership and a pending add of the same key are different entries. Entries that
// both snapshots share are compared by pointer. A nil snapshot is empty.
func Changes(before, after *Snapshot, f func(was, is *Instance)) {
	var a, b []*Instance
	if before != nil {
		a = before.all
	}
	if after != nil {
		b = after.all
	}
	for len(a) > 0 || len(b) > 0 {
		order := 0
		switch {
		case len(a) == 0:
			order = 1
		case len(b) == 0:
			order = -1
		case a[0] != b[0]:
			order = comparePlaces(a[0], b[0])
		}
		var was, is *Instance
		if order <= 0 {
			was, a = a[0], a[1:]
		}
		if order >= 0 {
			is, b = b[0], b[1:]
		}
		if was != is {
			f(was, is)
		}
	}
}
