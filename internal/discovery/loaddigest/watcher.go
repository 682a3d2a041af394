// Package loaddigest publishes the load of a proxy for the other proxies, and follows and sums up
// their digests. The format of a digest is schema.Digest.
//
// An old digest counts less: a proxy with requests in flight writes its digest every Refresh, so
// one that is older belongs to a proxy that hangs or was stopped, or etcd is unreachable.
package loaddigest

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/sirupsen/logrus"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/pdmesh/pdmesh/internal/discovery/etcd"
	"github.com/pdmesh/pdmesh/internal/discovery/schema"
	"github.com/pdmesh/pdmesh/internal/instance"
)

// ProxyLoad is the last digest of one proxy. It is immutable.
type ProxyLoad struct {
	ID string // of the proxy
	schema.Digest
	ReceivedAt time.Time // by the clock of this process
	Ignored    string    // why the digest is not used; "" if it is

	revision, lease int64 // after a wipe of etcd, another write may have the same revision
}

// Watcher follows the digests of all proxies, including this one. It uses a separate watch. While
// etcd is unreachable, it keeps the last digests, whose age grows. A nil Watcher has no digests.
type Watcher struct {
	cli    *clientv3.Client
	layout schema.Layout
	log    logrus.FieldLogger
	relist chan struct{} // another store may have taken over; capacity one

	mu      sync.Mutex // guards the fields below
	proxies map[string]*ProxyLoad
	changed chan struct{}
}

// NewWatcher returns a Watcher that uses cli, which the caller closes after Run has returned.
func NewWatcher(cli *clientv3.Client, l schema.Layout, log logrus.FieldLogger) *Watcher {
	return &Watcher{cli: cli, layout: l, log: etcd.LogOrDiscard(log), relist: make(chan struct{}, 1), proxies: map[string]*ProxyLoad{}, changed: make(chan struct{})}
}

// Relist makes Run list the digests again. It must be called after another store has taken over: there,
// the watch is silent until the revisions have passed those of the former store.
func (w *Watcher) Relist() {
	if w != nil {
		etcd.Signal(w.relist)
	}
}

// All returns the last digest of each proxy, ordered by ID.
func (w *Watcher) All() []*ProxyLoad {
	if w == nil {
		return nil
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.SortedFunc(maps.Values(w.proxies), func(a, b *ProxyLoad) int { return strings.Compare(a.ID, b.ID) })
}

// Changed returns a channel that is closed when the result of All changes.
func (w *Watcher) Changed() <-chan struct{} {
	if w == nil {
		return nil
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.changed
}

// set replaces the digest of one proxy; nil deletes it. Only the goroutine of Run calls it, and may
// read the map without the lock.
func (w *Watcher) set(id string, p *ProxyLoad) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if p == nil {
		delete(w.proxies, id)
	} else {
		w.proxies[id] = p
	}
	close(w.changed)
	w.changed = make(chan struct{})
}

// Run follows the digests until ctx ends.
func (w *Watcher) Run(ctx context.Context) {
	etcd.Retry(ctx, w.log, "watch of the load digests ended, listing again", w.follow)
}

// follow lists the digests and watches them until that fails.
func (w *Watcher) follow(ctx context.Context) error {
	prefix := w.layout.Load("")
	cctx, cancel := context.WithTimeout(ctx, etcd.CallTimeout)
	resp, err := w.cli.Get(cctx, prefix, clientv3.WithPrefix())
	cancel()
	if err != nil {
		return err
	}
	listed := map[string]bool{}
	for _, kv := range resp.Kvs {
		listed[string(kv.Key)] = true
		w.put(kv)
	}
	for id := range w.proxies {
		if !listed[prefix+id] {
			w.set(id, nil)
		}
	}
	wctx, stop := etcd.WatchContext(ctx)
	defer stop()
	// A watch that is silent may hang, so each one is replaced after about a minute.
	again := time.NewTimer(etcd.Jitter(time.Minute))
	defer again.Stop()
	// Watch returns once etcd has created the watch, which a hung member never does.
	deadline := time.AfterFunc(etcd.LongestWait, stop)
	events := w.cli.Watch(wctx, prefix, clientv3.WithPrefix(), clientv3.WithRev(resp.Header.Revision+1))
	deadline.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-again.C:
			return nil
		case <-w.relist:
			return nil
		case resp, ok := <-events:
			if !ok {
				return errors.New("watch closed")
			}
			if err := resp.Err(); err != nil {
				return err
			}
			for _, ev := range resp.Events {
				if ev.Type == mvccpb.Event_DELETE {
					w.set(strings.TrimPrefix(string(ev.Kv.Key), prefix), nil)
				} else {
					w.put(ev.Kv)
				}
			}
		}
	}
}

// put stores a digest. One that is known already keeps its age.
func (w *Watcher) put(kv *mvccpb.KeyValue) {
	id := strings.TrimPrefix(string(kv.Key), w.layout.Load(""))
	old, full := w.proxies[id], len(w.proxies) >= maxProxies
	if old != nil && old.revision == kv.ModRevision && old.lease == kv.Lease || old == nil && full {
		return
	}
	p := decode(id, kv)
	if p.Ignored != "" && (old == nil || old.Ignored != p.Ignored) {
		w.log.WithField("proxy", p.ID).Warn("load digest of another proxy ignored: " + p.Ignored)
	}
	w.set(id, p)
}

// maxProxies is the number of proxies whose digests are kept.
const maxProxies = 1024

func decode(id string, kv *mvccpb.KeyValue) *ProxyLoad {
	p := &ProxyLoad{ID: instance.Printable(id, 128), ReceivedAt: time.Now(), revision: kv.ModRevision, lease: kv.Lease}
	var err error
	if p.Digest, err = schema.DecodeDigest(kv.Value); err != nil {
		p.Ignored = err.Error()
	}
	return p
}

// Decode returns the digests in listed keys.
func Decode(l schema.Layout, kvs []*mvccpb.KeyValue) []*ProxyLoad {
	out := make([]*ProxyLoad, 0, len(kvs))
	for _, kv := range kvs {
		out = append(out, decode(strings.TrimPrefix(string(kv.Key), l.Load("")), kv))
	}
	return out
}
