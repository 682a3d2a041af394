package sched

// bound gives a session its instance: among all that may be picked now, the
// one that scores highest for this session (rendezvous hashing). Nothing is
// remembered, so every proxy gives the same answer over the same membership,
// and when an instance comes or goes only the sessions that it wins or had move.
// An instance that starts slowly takes its sessions at once.
func (s *Scheduler) bound(ix *index, list *candidates, r Request) *candidate {
	allowed := func(c *candidate) bool { return c.fits(ix, &r) }
	if troubled := s.opts.Health.Troubled(); len(troubled) > 0 || list.slow > 0 {
		allowed = s.admission(ix, list, &r, troubled)
	}
	session := sessionHash(r.Session)
	var best *candidate
	var top uint64
	for i := range list.items {
		c := &list.items[i]
		if !allowed(c) {
			continue
		}
		if score := sessionScore(session, c.instance.Address); best == nil || score > top {
			best, top = c, score
		}
	}
	return best
}

// FNV-1a, 64 bits. The scores are the same in every process and version: a
// change would move every session once.
const (
	fnvOffset = 14695981039346656037
	fnvPrime  = 1099511628211
)

func sessionHash(session string) uint64 {
	h := hashOn(fnvOffset, session)
	return (h ^ 0xff) * fnvPrime // no byte of UTF-8 text: "a"+"bc" differs from "ab"+"c"
}

// sessionScore goes on with an address and finishes so that its last bytes
// reach all bits.
func sessionScore(session uint64, address string) uint64 {
	h := hashOn(session, address)
	h = (h ^ h>>33) * 0xff51afd7ed558ccd
	h = (h ^ h>>33) * 0xc4ceb9fe1a85ec53
	return h ^ h>>33
}

func hashOn(h uint64, s string) uint64 {
	for i := range len(s) {
		h = (h ^ uint64(s[i])) * fnvPrime
	}
	return h
}
