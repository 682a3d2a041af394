package discovery

import "time"

// Limits of the waits for one answer of etcd. The first wait is short, since
// there may be another member that answers at once. From the second answer in a
// row that fails to come it doubles, so that an etcd which is slow, and the only
// one, is heard in the end.
const (
	firstWait    = time.Second
	longestWait  = 3 * time.Second
	longestList  = 10 * time.Second // of all values of a large fleet
	roomForSlow  = 4                // times what the last answer took are waited for the next
	growthOfWait = 2
)

// patience is how long the next answer of one kind is waited for. The zero
// value begins with firstWait. It has one user.
type patience struct {
	wait   time.Duration
	missed bool // the last answer did not come
}

// limit is the deadline for the next question.
func (p *patience) limit() time.Duration { return max(p.wait, firstWait) }

// learn takes how long the last question took, and whether it was answered.
func (p *patience) learn(took time.Duration, answered bool, longest time.Duration) {
	silent := !answered && took >= p.limit() // a refusal says nothing about how long answers take
	switch {
	case answered:
		p.wait = min(max(roomForSlow*took, firstWait), longest)
	case silent && p.missed:
		p.wait = min(growthOfWait*p.limit(), longest)
	}
	p.missed = silent
}
