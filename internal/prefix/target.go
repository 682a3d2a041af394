package prefix

// target is what one of them holds.
type target struct {
	// newest and oldest are the ends of the list in the order of use.
	newest, oldest *use
	borders        int
	bytes          int // of text
}

// use is a part of the tree that a target holds, or a prompt that it holds according to
// another proxy.
type use struct {
	newer, older *use
	target       int32
	at           uint32  // tick of the last use, see indexmem
	node         *node   // nil for what was heard
	heard        *Placed // nil for what this proxy has noted
}

// link makes a use the newest, of the tick now.
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

// linkBehind makes a use the next newer one of another.
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
