package prefix

// target has the prompts that one instance or rank holds.
type target struct {
	lru      use // its LRU list is a ring: lru.newer is the oldest use, lru.older the newest
	borders  int
	bytes    int // of text
	capacity int // in bytes of text, as of the last Note; 0: unknown
}

func newTarget() *target {
	is := &target{}
	is.lru.older, is.lru.newer = &is.lru, &is.lru
	return is
}

// oldest returns the least recent use, nil if there is none.
func (is *target) oldest() *use {
	if is.lru.newer == &is.lru {
		return nil
	}
	return is.lru.newer
}

// use is an entry of the LRU list of a target: a node of the tree, or a prompt of another proxy.
type use struct {
	newer, older *use
	target       int32
	at           uint32  // tick of the last use, see indexmem
	node         *node   // nil for a prompt of another proxy
	placed       *Placed // nil for a node
}

// link makes u the newest entry, used in the tick now.
func (is *target) link(u *use, now uint32) {
	u.linkBehind(is.lru.older)
	u.at = now
}

// linkBehind inserts u as the next newer entry after older, with its tick.
func (u *use) linkBehind(older *use) {
	u.older, u.newer, u.at = older, older.newer, older.at
	u.older.newer, u.newer.older = u, u
}

func (u *use) unlink() { u.older.newer, u.newer.older = u.newer, u.older }
