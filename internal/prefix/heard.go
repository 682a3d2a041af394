package prefix

import "slices"

// heardBytes is about what a prompt of another proxy takes: its use, its Placed, and its
// places under each of its borders.
const heardBytes = 250

// heard are the prompts that targets hold by what other proxies say, by each of the
// borders that were told.
type heard map[Key][]*use

func (h heard) remove(u *use) {
	for _, key := range u.heard.Keys {
		if left := slices.DeleteFunc(h[key], func(other *use) bool { return other == u }); len(left) > 0 {
			h[key] = left
		} else {
			delete(h, key)
		}
	}
}

// find returns the prompt that ends with a border, as target t holds it.
func (h heard) find(t int, last Key) *use {
	for _, u := range h[last] {
		if int(u.target) == t && u.heard.Keys[tail-1] == last {
			return u
		}
	}
	return nil
}

// Hear notes a prompt that another proxy has sent to target t.
func (x *Index) Hear(t int, p *Placed, capacity int) {
	is := x.targets[t]
	if u := x.heard.find(t, p.Keys[tail-1]); u != nil {
		is.unlink(u)
		is.link(u, x.memory.Now())
		return
	}
	own := *p
	u := &use{heard: &own, target: int32(t)} //nolint:gosec // the number of a target
	for _, key := range own.Keys {
		x.heard[key] = append(x.heard[key], u)
	}
	is.link(u, x.memory.Now())
	x.count(t, len(own.Keys), int(own.Bytes))
	x.bytes += heardBytes
	x.bound(t, capacity)
	x.report()
}

// unhear forgets what was heard of a prompt that is noted for a target now.
func (x *Index) unhear(t int, c *Chain) {
	if len(x.heard) == 0 {
		return
	}
	for _, key := range c.keys {
		if u := x.heard.find(t, key); u != nil {
			x.forget(u, len(u.heard.Keys))
		}
	}
}

// Deepest raises what Look has found by what was heard: of such prompts the last
// borders are known only.
func (x *Index) Deepest(c *Chain, longest []int) {
	if len(x.heard) == 0 {
		return
	}
	for i, key := range slices.Backward(c.keys) {
		for _, u := range x.heard[key] {
			longest[u.target] = max(longest[u.target], i+1)
		}
	}
}
