package faults_test

import (
	"context"
	"slices"
	"sync"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// change is one change of a key, as an etcd watch delivered it.
type change struct {
	Key     string
	Deleted bool
	Value   string
	At      time.Time // time of arrival, by the local clock
}

// history records every change below a prefix.
type history struct {
	mu     sync.Mutex // guards events
	events []change
}

// record starts recording the changes below prefix, until the test ends. It
// returns once etcd has confirmed the watch.
func record(t testing.TB, cli *clientv3.Client, prefix string) *history {
	t.Helper()
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	h := &history{}
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

func (h *history) add(events []*clientv3.Event) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, e := range events {
		h.events = append(h.events, change{
			Key: string(e.Kv.Key), Deleted: e.Type == mvccpb.Event_DELETE, Value: string(e.Kv.Value), At: time.Now(),
		})
	}
}

// all returns the changes so far, in order.
func (h *history) all() []change {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.events)
}

// of returns the changes of one key, in order.
func (h *history) of(key string) []change {
	return slices.DeleteFunc(h.all(), func(e change) bool { return e.Key != key })
}

// deleted returns the first deletion of a key.
func (h *history) deleted(key string) (change, bool) {
	for _, e := range h.of(key) {
		if e.Deleted {
			return e, true
		}
	}
	return change{}, false
}
