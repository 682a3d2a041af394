package lmcache

import (
	"container/list"
	"context"
	"sync"
	"time"
)

// Defaults of an Inbox.
const (
	// keep is how long a notification is kept for its proxy.
	keep = 10 * time.Minute
	// maxIDs bounds the ids that are kept. The oldest are dropped.
	maxIDs = 1 << 16
	// maxRanks bounds the number of senders for one id.
	maxRanks = 1024
)

// Inbox keeps notifications by request id until a proxy waits for them. A notification does not name its
// rank. Each rank has one connection, so notifications from one connection count as one, and from two
// connections as two. An Inbox is safe for concurrent use.
type Inbox struct {
	now func() time.Time

	mu    sync.Mutex // guards the fields below
	ids   map[string]*entry
	order *list.List // of *entry, oldest first
}

// entry has the notifications for one id.
type entry struct {
	id      string
	first   time.Time
	senders map[string]struct{}
	changed chan struct{} // closed with each new sender
	waiting int
	place   *list.Element
}

// NewInbox returns an empty Inbox.
func NewInbox() *Inbox { return newInbox(time.Now) }

func newInbox(now func() time.Time) *Inbox {
	return &Inbox{now: now, ids: make(map[string]*entry), order: list.New()}
}

// Add records a notification. sender is its connection.
func (b *Inbox) Add(id, sender string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	e := b.get(id)
	if _, known := e.senders[sender]; known || len(e.senders) >= maxRanks {
		return
	}
	e.senders[sender] = struct{}{}
	close(e.changed)
	e.changed = make(chan struct{})
}

// Await blocks until the given number of ranks has notified for an id, and drops their notifications. The
// error is the cause of ctx.
func (b *Inbox) Await(ctx context.Context, id string, ranks int) error {
	b.mu.Lock()
	e := b.get(id)
	e.waiting++
	for len(e.senders) < ranks {
		changed := e.changed
		b.mu.Unlock()
		select {
		case <-changed:
			b.mu.Lock()
		case <-ctx.Done():
			b.mu.Lock()
			e.waiting--
			b.mu.Unlock()
			return context.Cause(ctx)
		}
	}
	e.waiting--
	b.drop(e)
	b.mu.Unlock()
	return nil
}

// get returns the entry of an id, creating it if necessary, and drops expired entries. The
// caller holds b.mu.
func (b *Inbox) get(id string) *entry {
	now := b.now()
	for at := b.order.Front(); at != nil; {
		e, next := at.Value.(*entry), at.Next() //nolint:forcetypeassert // there is nothing else in it
		if now.Sub(e.first) < keep && b.order.Len() < maxIDs {
			break
		}
		if e.waiting == 0 {
			b.drop(e)
		}
		at = next
	}
	e := b.ids[id]
	if e == nil {
		e = &entry{id: id, first: now, senders: make(map[string]struct{}), changed: make(chan struct{})}
		e.place = b.order.PushBack(e)
		b.ids[id] = e
	}
	return e
}

// drop removes an entry. The caller holds b.mu.
func (b *Inbox) drop(e *entry) {
	if b.ids[e.id] == e {
		delete(b.ids, e.id)
		b.order.Remove(e.place)
	}
}
