package accesslog

import "time"

// clock keeps what the time of a line has in common with that of the line
// before, which is mostly of the same second. It has one owner.
type clock struct {
	before, after string // stand around the time

	unix int64          // the second that head and tail are of,
	zone *time.Location // and where; nil: none yet
	head []byte         // before, and the time up to its seconds
	tail []byte         // its offset from UTC, and after
}

// turn makes head and tail those of t. A zone changes its offset between two
// seconds, so they are right for all of t's second.
func (c *clock) turn(t time.Time) {
	unix, zone := t.Unix(), t.Location()
	if unix == c.unix && zone == c.zone {
		return
	}
	c.unix, c.zone = unix, zone
	c.head = t.AppendFormat(append(c.head[:0], c.before...), "2006-01-02T15:04:05")
	c.tail = append(t.AppendFormat(c.tail[:0], "Z07:00"), c.after...)
}
