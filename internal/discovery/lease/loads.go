package lease

import (
	"context"
	"fmt"
	"math/rand/v2"
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

// ProxyLoad is what one proxy said of its load last.
type ProxyLoad struct {
	ID string
	schema.Digest
	Heard time.Time // when that was read here
	// Ignored is why its digest is not used; "" for one that is.
	Ignored string

	revision int64
}

// Loads follows the digests of all proxies, this one's included. It has a watch of its
// own, and nothing depends on it: without etcd what was read grows old.
type Loads struct {
	cli    *clientv3.Client
	layout schema.Layout
	log    logrus.FieldLogger

	mu      sync.Mutex            // guards what follows
	m       map[string]*ProxyLoad // its values do not change
	changed chan struct{}
}

// NewLoads makes a Loads on a client that the caller closes after Run has returned.
func NewLoads(cli *clientv3.Client, l schema.Layout, log logrus.FieldLogger) *Loads {
	return &Loads{cli: cli, layout: l, log: etcd.LogOrDiscard(log), m: map[string]*ProxyLoad{}, changed: make(chan struct{})}
}

// All returns what is known, in the order of the ids.
func (w *Loads) All() []*ProxyLoad {
	w.mu.Lock()
	defer w.mu.Unlock()
	out := make([]*ProxyLoad, 0, len(w.m))
	for _, p := range w.m {
		out = append(out, p)
	}
	slices.SortFunc(out, func(a, b *ProxyLoad) int { return strings.Compare(a.ID, b.ID) })
	return out
}

// Changed returns a channel that is closed when the result of All changes.
func (w *Loads) Changed() <-chan struct{} {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.changed
}

// set changes what is known of one proxy; nil is nothing. The caller holds mu.
func (w *Loads) set(id string, p *ProxyLoad) {
	if p == nil {
		delete(w.m, id)
	} else {
		w.m[id] = p
	}
	close(w.changed)
	w.changed = make(chan struct{})
}

// Run follows until ctx ends.
func (w *Loads) Run(ctx context.Context) error {
	tries := 0
	for ctx.Err() == nil {
		start := time.Now()
		err := w.follow(ctx)
		if ctx.Err() != nil {
			break
		}
		w.log.WithField("error", err).Debug("the watch of the load digests ended, listing again")
		if tries++; time.Since(start) > etcd.GoodTime {
			tries = 0
		}
		etcd.Pause(ctx, rand.N(min(etcd.BackoffCap, etcd.BackoffBase<<min(tries, 10))))
	}
	return nil //nolint:nilerr // it ends when it is told to
}

// follow lists and watches until that fails.
func (w *Loads) follow(ctx context.Context) error {
	prefix := w.layout.Load("")
	cctx, cancel := context.WithTimeout(ctx, etcd.CallTimeout)
	resp, err := w.cli.Get(cctx, prefix, clientv3.WithPrefix())
	cancel()
	if err != nil {
		return err
	}
	there := map[string]bool{}
	for _, kv := range resp.Kvs {
		there[string(kv.Key)] = true
		w.put(kv)
	}
	w.mu.Lock()
	for id := range w.m {
		if !there[prefix+id] {
			w.set(id, nil)
		}
	}
	w.mu.Unlock()
	wctx, stop := etcd.WatchContext(ctx)
	defer stop()
	// No watch is trusted for ever: one that is silent may hang.
	again := time.NewTimer(etcd.Jitter(time.Minute))
	defer again.Stop()
	events := w.cli.Watch(wctx, prefix, clientv3.WithPrefix(), clientv3.WithRev(resp.Header.Revision+1))
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-again.C:
			return nil
		case resp, ok := <-events:
			if !ok {
				return fmt.Errorf("the watch was closed")
			}
			if err := resp.Err(); err != nil {
				return err
			}
			for _, ev := range resp.Events {
				if ev.Type == mvccpb.Event_DELETE {
					w.mu.Lock()
					w.set(strings.TrimPrefix(string(ev.Kv.Key), prefix), nil)
					w.mu.Unlock()
				} else {
					w.put(ev.Kv)
				}
			}
		}
	}
}

// put takes a digest. One that was read before is as old as it was.
func (w *Loads) put(kv *mvccpb.KeyValue) {
	id := strings.TrimPrefix(string(kv.Key), w.layout.Load(""))
	w.mu.Lock()
	was := w.m[id]
	w.mu.Unlock()
	if was != nil && was.revision == kv.ModRevision {
		return
	}
	if was == nil && w.many() {
		return
	}
	p := readLoad(id, kv)
	if p.Ignored != "" && (was == nil || was.Ignored != p.Ignored) {
		w.log.WithField("proxy", p.ID).Warn("the load that another proxy tells of is not used: " + p.Ignored)
	}
	w.mu.Lock()
	w.set(id, p)
	w.mu.Unlock()
}

// maxLoads is how many proxies' digests are kept.
const maxLoads = 1024

func (w *Loads) many() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.m) >= maxLoads
}

func readLoad(id string, kv *mvccpb.KeyValue) *ProxyLoad {
	p := &ProxyLoad{ID: instance.Printable(id, 128), Heard: time.Now(), revision: kv.ModRevision}
	var err error
	if p.Digest, err = schema.DecodeDigest(kv.Value); err != nil {
		p.Ignored = err.Error()
	}
	return p
}

func ReadLoads(l schema.Layout, kvs []*mvccpb.KeyValue) []*ProxyLoad {
	out := make([]*ProxyLoad, 0, len(kvs))
	for _, kv := range kvs {
		out = append(out, readLoad(strings.TrimPrefix(string(kv.Key), l.Load("")), kv))
	}
	return out
}
