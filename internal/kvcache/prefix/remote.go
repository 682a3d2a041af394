package prefix

import "slices"

// remoteBytes is the estimated memory of a prompt of another proxy: its use, its Placed, and the entries of
// its borders.
const remoteBytes = 250

// remote has the prompts that targets hold according to other proxies, by each published border.
type remote map[Key][]*use

func (r remote) remove(u *use) {
	for _, key := range u.placed.Keys {
		if left := slices.DeleteFunc(r[key], func(other *use) bool { return other == u }); len(left) > 0 {
			r[key] = left
		} else {
			delete(r, key)
		}
	}
}

// find returns the prompt of target t whose last border is last, or nil.
func (r remote) find(t int, last Key) *use {
	for _, u := range r[last] {
		if int(u.target) == t && u.placed.Keys[tail-1] == last {
			return u
		}
	}
	return nil
}

// AddRemote adds a prompt that another proxy has sent to target t. The last Note has set the capacity of t.
func (x *Index) AddRemote(t int, p *Placed) {
	is := x.targets[t]
	if u := x.remote.find(t, p.Keys[tail-1]); u != nil {
		u.unlink()
		is.link(u, x.memory.Now())
		return
	}
	own := *p
	u := &use{placed: &own, target: int32(t)} //nolint:gosec // the number of a target
	for _, key := range own.Keys {
		x.remote[key] = append(x.remote[key], u)
	}
	is.link(u, x.memory.Now())
	x.count(t, len(own.Keys), int(own.Bytes))
	x.bytes += remoteBytes
	x.bound(t)
	x.report()
}

// forgetRemote removes the other proxies' entries of a prompt that this proxy sends to target t.
func (x *Index) forgetRemote(t int, c *Chain) {
	if len(x.remote) == 0 {
		return
	}
	for _, key := range c.keys {
		if u := x.remote.find(t, key); u != nil {
			x.forget(u, len(u.placed.Keys))
		}
	}
}

// Deepest raises the results of Lookup according to the prompts of other proxies, of which only the last
// borders are known.
func (x *Index) Deepest(c *Chain, longest []int) {
	if len(x.remote) == 0 {
		return
	}
	for i, key := range slices.Backward(c.keys) {
		for _, u := range x.remote[key] {
			longest[u.target] = max(longest[u.target], i+1)
		}
	}
}
