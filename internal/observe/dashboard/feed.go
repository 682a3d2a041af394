package dashboard

import (
	"cmp"
	"fmt"
	"time"

	"github.com/pdmesh/pdmesh/internal/instance"
)

// maxFeed is the number of changes kept.
const maxFeed = 100

// Change is one entry of the feed: an instance that joined, left or changed.
type Change struct {
	N    int64         `json:"n"` // sequence number
	At   int64         `json:"at"`
	Role instance.Role `json:"role,omitempty"`
	Who  string        `json:"who,omitempty"` // an address, or the name of another part, such as etcd
	Kind string        `json:"kind"`          // good, bad or plain; selects the mark before the text
	Text string        `json:"text"`
}

const (
	good  = "good"
	bad   = "bad"
	plain = "plain"
)

// feed has the last changes. It is owned by the goroutine of the Board.
type feed struct {
	all []Change
	n   int64
}

func (f *feed) add(c Change, at time.Time) {
	f.n++
	c.N, c.At = f.n, at.UnixMilli()
	f.all = append(f.all[max(0, len(f.all)+1-maxFeed):], c)
}

// since returns the changes after number n.
func (f *feed) since(n int64) []Change {
	for i, c := range f.all {
		if c.N > n {
			return f.all[i:]
		}
	}
	return nil
}

// until returns the changes up to number n.
func (f *feed) until(n int64) []Change {
	if rest := f.since(n); len(rest) < len(f.all) {
		return f.all[:len(f.all)-len(rest)]
	}
	return nil
}

// follow adds the changes between two snapshots. For the first one it adds the number of entries.
func (f *feed) follow(was, is *instance.Snapshot, at time.Time) {
	if was.Revision == 0 && len(was.All()) == 0 {
		if n := len(is.All()); n > 0 {
			f.add(Change{Kind: plain, Who: "this proxy", Text: fmt.Sprintf("read the membership: %d entries", n)}, at)
		}
		return
	}
	instance.Changes(was, is, func(was, is *instance.Instance) {
		for _, c := range changes(was, is) {
			f.add(c, at)
		}
	})
}

// changes describes the changes of an entry; was or is is nil if there was or is none.
func changes(was, is *instance.Instance) []Change {
	change := func(in *instance.Instance, kind, format string, args ...any) Change {
		return Change{Role: in.Role, Who: in.Address, Kind: kind, Text: fmt.Sprintf(format, args...)}
	}
	switch {
	case was == nil && is.View == instance.Pending:
		return []Change{change(is, plain, "was added, and does not respond yet")}
	case was == nil && is.Usable():
		return []Change{change(is, good, "joined")}
	case was == nil:
		return []Change{change(is, plain, "joined, %s", condition(is))}
	case is == nil && was.View == instance.Pending:
		return nil // it is a member now, or the add was undone
	case is == nil:
		return []Change{change(was, bad, "left%s", leftHow(was))}
	}
	if was.View == instance.Pending || is.View == instance.Pending {
		return nil
	}
	var out []Change
	switch c := condition(is); {
	case is.Intent != was.Intent && is.Intent == "":
		out = append(out, change(is, good, "%s was lifted", was.Intent))
	case is.Intent != was.Intent:
		out = append(out, change(is, bad, "%s%s", asked(is.Intent), because(is.Reason)))
	case is.Usable() && !was.Usable():
		out = append(out, change(is, good, "is %s again", c))
	case c != condition(was) && was.Usable() && !is.Usable():
		out = append(out, change(is, bad, "is %s%s", c, because(is.Reason)))
	case c != condition(was):
		out = append(out, change(is, plain, "is %s%s", c, because(is.Reason)))
	}
	if was.Incarnation() != is.Incarnation() && was.Verified {
		out = append(out, change(is, plain, "restarted"))
	}
	if was.Weight() != is.Weight() {
		out = append(out, change(is, plain, "weight changed from %d to %d", was.Weight(), is.Weight()))
	}
	return out
}

// condition returns the name of the state of an instance.
func condition(in *instance.Instance) string {
	switch {
	case in.View != "":
		return string(in.View)
	case in.Record.State == instance.Down && in.Record.Cause == instance.CauseSlow:
		return "slow"
	}
	if in.Record.State == instance.Ready && in.Weight() == 0 {
		return "at weight 0"
	}
	return cmp.Or(string(in.Record.State), "in an unknown state")
}

func asked(intent instance.Intent) string {
	switch intent {
	case instance.Drain:
		return "is drained by an operator"
	case instance.Cordon:
		return "is cordoned"
	case instance.Removed:
		return "is removed"
	}
	return "has the intent " + instance.Printable(string(intent), 32)
}

func because(reason string) string {
	if reason == "" {
		return ""
	}
	return ": " + instance.Printable(reason, 160)
}

func leftHow(in *instance.Instance) string {
	switch {
	case in.Intent == instance.Removed:
		return " (removed)"
	case in.Record.State == instance.Draining:
		return " after its drain"
	case in.View == instance.Orphan:
		return ": its lease was lost, and it no longer responds"
	}
	return ""
}
