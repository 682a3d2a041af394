package prefix

import "slices"

// remoteBytes is the estimated memory of a prompt of another proxy: its use, its Placed, and the entries of
// its borders.
const remoteBytes = 275

// remote has the prompts that targets hold according to other proxies, by each published border. A border has
// one entry for each target, however many prompts share it.
type remote map[Key][]sharing

// sharing is a target that holds prompts with a border.
type sharing struct {
	target  int32
	prompts int32
	last    *use // the one whose last border it is; nil: none
}

// at returns the entry of a target at a border, nil if there is none.
func (r remote) at(key Key, target int32) *sharing {
	list := r[key]
	if i := slices.IndexFunc(list, func(s sharing) bool { return s.target == target }); i >= 0 {
		return &list[i]
	}
	return nil
}

func (r remote) add(u *use) {
	for _, key := range u.placed.Keys {
		s := r.at(key, u.target)
		if s == nil {
			r[key] = append(r[key], sharing{target: u.target})
			s = &r[key][len(r[key])-1]
		}
		s.prompts++
	}
	r.at(u.placed.Keys[tail-1], u.target).last = u
}

func (r remote) remove(u *use) {
	r.at(u.placed.Keys[tail-1], u.target).last = nil
	for _, key := range u.placed.Keys {
		if s := r.at(key, u.target); s.prompts > 1 {
			s.prompts--
		} else if r[key] = slices.DeleteFunc(r[key], func(s sharing) bool { return s.target == u.target }); len(r[key]) == 0 {
			delete(r, key)
		}
	}
}

// find returns the prompt of target t whose last border is last, or nil.
func (r remote) find(t int, last Key) *use {
	if s := r.at(last, int32(t)); s != nil { //nolint:gosec // the number of a target
		return s.last
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
	x.remote.add(u)
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
		for _, s := range x.remote[key] {
			longest[s.target] = max(longest[s.target], i+1)
		}
	}
}
