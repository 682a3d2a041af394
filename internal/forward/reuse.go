package forward

import (
	"net/http"
	"time"

	"github.com/pdmesh/pdmesh/internal/openai"
	"github.com/pdmesh/pdmesh/internal/upstream"
)

// What is made anew for each request comes out of the processor's caches, and the
// more of it there is the oftener the collector runs. So an exchange is made of the
// memory of one that has ended (kept), and what it needs until its answer is
// committed is lent to it (draft).

// kept is what an exchange hands down to the next one that is made of its memory.
type kept struct {
	timer   *time.Timer // of exchange.deadline, stopped
	onLeft  func()      // clientLeft
	spaces  *[2]upstream.Space
	answers memory // of the engines
}

// draft holds a small body, what was read in it, and what the legs send.
type draft struct {
	header http.Header // nil while it is in use
	first  http.Header // the same, for the next
	lines  upstream.Lines
	body   memory
	one    [1]byte // for a read that should find the end

	request openai.Request
}

const (
	// smallAnswers is room for a prefill's answer, and for a short one behind it;
	// mostAnswers is kept where there were longer ones. A stream needs room for the
	// first alone, and may last for minutes.
	smallAnswers = 1 << 10
	mostAnswers  = 4 << 10
	// maxKeptNames and maxKeptLines (bytes) bound the header of which the memory is
	// kept.
	maxKeptNames = 64
	maxKeptLines = 2 << 10
)

// memory is given out in pieces, all of which are used until their owner has ended.
type memory struct{ all, left []byte }

// take gives n bytes, out of size bytes that are kept if they are enough, or out of
// more for the next time, up to most. What is appended to them goes elsewhere.
func (m *memory) take(n, size, most int) []byte {
	used := len(m.all) - len(m.left)
	switch {
	case n <= len(m.left):
	case used+n <= size:
		m.all = make([]byte, size)
		m.left = m.all[used:]
	case used+n <= most:
		m.all = make([]byte, min(most, 2*(used+n))) // what was given keeps its own
		m.left = m.all[used:]
	default:
		return make([]byte, n)
	}
	b := m.left[:n:n]
	m.left = m.left[n:]
	return b
}

func (m *memory) reset() { m.left = m.all }

// borrow gives the exchange its draft.
func (x *exchange) borrow() *draft {
	if x.draft == nil {
		if x.draft, _ = x.h.drafts.Get().(*draft); x.draft == nil {
			x.draft = new(draft)
		}
	}
	return x.draft
}

// giveBack ends the use of the draft. Unless an upstream client may still be
// reading it another exchange gets it.
func (x *exchange) giveBack() {
	d := x.draft
	if x.draft = nil; d == nil || x.lent {
		return
	}
	clear(d.first)
	d.header = d.first
	d.body.reset()
	d.request.Reset()
	if d.lines.Clear() <= maxKeptLines {
		x.h.drafts.Put(d)
	}
}

// newHeader gives an empty header with room for n names. A long one is not kept: to
// empty it costs as much as it once held.
func (x *exchange) newHeader(n int) http.Header {
	d := x.borrow()
	if n > maxKeptNames {
		return make(http.Header, n)
	}
	h := d.header
	if d.header = nil; h == nil {
		h = make(http.Header, n)
		if d.first == nil {
			d.first = h
		}
	}
	return h
}

// ours tells that certainly nobody else holds on to any of an exchange that has
// ended: who calls a leg off, or a deadline that goes off, must not meet another
// request there, and the answer's header must have been written.
func (x *exchange) ours() bool {
	w, ok := x.w.(interface{ Written() bool })
	if !ok || !w.Written() || !x.unwatched || x.lent || x.broken || x.apart || x.entry.Attempts > 0 {
		return false
	}
	for i := range x.legs {
		if !x.room[i].alone {
			return false
		}
	}
	return true
}

// recycle lets another exchange have the memory of one that has ended, if it is
// ours; otherwise it is the collector's.
func (x *exchange) recycle() {
	if !x.ours() {
		return
	}
	h, k := x.h, x.kept
	k.timer = x.deadline.timer
	k.answers.reset()
	if k.spaces != nil {
		k.spaces[0].Clear()
		k.spaces[1].Clear()
	}
	*x = exchange{kept: k}
	x.deadline.timer = k.timer
	h.exchanges.Put(x)
}
