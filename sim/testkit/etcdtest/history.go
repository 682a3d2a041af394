package etcdtest

import (
	"context"
	"slices"
	"sync"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// Event is one change of a key, as an etcd watch delivered it.
type Event struct {
	Key     string
	Deleted bool
	Value   string
	At      time.Time // time of arrival, by the local clock
}

// History records every change below a prefix.
type History struct {
	mu     sync.Mutex // guards events
	events []Event
}

// Record starts recording the changes below prefix, until the test ends. It
// returns once etcd has confirmed the watch.
func Record(t testing.TB, cli *clientv3.Client, prefix string) *History {
	t.Helper()
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	h := &History{}
	watch := cli.Watch(ctx, prefix, clientv3.WithPrefix(), clientv3.WithCreatedNotify())
	if resp, ok := <-watch; !ok || resp.Err() != nil {
		cancel()
		t.Fatalf("record %s: %v", prefix, resp.Err())
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for resp := range watch {
			h.add(resp.Events)
		}
	}()
	t.Cleanup(func() { cancel(); <-done })
	return h
}

func (h *History) add(events []*clientv3.Event) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, e := range events {
		h.events = append(h.events, Event{
			Key: string(e.Kv.Key), Deleted: e.Type == mvccpb.Event_DELETE, Value: string(e.Kv.Value), At: time.Now(),
		})
	}
}

// All returns the changes so far, in order.
func (h *History) All() []Event {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.events)
}

// Of returns the changes of one key, in order.
func (h *History) Of(key string) []Event {
	return slices.DeleteFunc(h.All(), func(e Event) bool { return e.Key != key })
}

// Deleted returns the first deletion of a key.
func (h *History) Deleted(key string) (Event, bool) {
	for _, e := range h.Of(key) {
		if e.Deleted {
			return e, true
		}
	}
	return Event{}, false
}
