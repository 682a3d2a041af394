package prefix

// target is what one instance or rank holds.
type target struct {
	// newest and oldest are the ends of the LRU list.
	newest, oldest *use
	borders        int
	bytes          int // of text
	capacity       int // in bytes of text, by the last Note; 0: unknown
}

// use is an entry of the LRU list of a target: a node of the tree, or a prompt that it holds
// according to another proxy.
type use struct {
	newer, older *use
	target       int32
	at           uint32  // tick of the last use, see indexmem
	node         *node   // nil for a prompt of another proxy
	placed       *Placed // nil for a node
}

// link makes u the newest entry, used in the tick now.
func (is *target) link(u *use, now uint32) {
	u.at = now
	u.newer, u.older = nil, is.newest
	if is.newest != nil {
		is.newest.newer = u
	} else {
		is.oldest = u
	}
	is.newest = u
}

// linkBehind inserts u as the next newer entry after older.
func (is *target) linkBehind(u, older *use) {
	u.older, u.newer, u.at = older, older.newer, older.at
	older.newer = u
	if u.newer != nil {
		u.newer.older = u
	} else {
		is.newest = u
	}
}

func (is *target) unlink(u *use) {
	if u.newer != nil {
		u.newer.older = u.older
	} else {
		is.newest = u.older
	}
	if u.older != nil {
		u.older.newer = u.newer
	} else {
		is.oldest = u.newer
	}
}
