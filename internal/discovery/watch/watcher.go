// Package watch follows the membership in etcd and publishes it as immutable snapshots.
//
// A Watcher uses one list and one ordered watch. One goroutine owns the table. Each snapshot shares
// the unchanged instances of the previous one. Entries that etcd has lost without a removal stay
// active.
package watch

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sirupsen/logrus"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/pdmesh/pdmesh/internal/discovery/disk"
	"github.com/pdmesh/pdmesh/internal/discovery/etcd"
	"github.com/pdmesh/pdmesh/internal/discovery/schema"
	"github.com/pdmesh/pdmesh/internal/instance"
)

// Prober reads the facts of one engine. It must return when ctx ends.
type Prober interface {
	Probe(ctx context.Context, in *instance.Instance) (instance.Facts, error)
}

// Writer performs the writes of a Watcher. Several proxies may make the same write at once:
// all but the first have no effect.
type Writer interface {
	// Promote registers the instance of a pending add, which has answered. It reports
	// whether this call did so.
	Promote(ctx context.Context, pending *instance.Instance, rec instance.Record) (bool, error)
	// DropPending ends the wait for an instance that is registered in another way.
	DropPending(ctx context.Context, pending *instance.Instance) (bool, error)
	// WriteBack writes the values that were kept from a former store, except where the present store
	// has one.
	WriteBack(ctx context.Context, k Kept, reason string) error
}

// Kept is the state that a Watcher keeps of one instance that a new store lacks.
type Kept struct {
	Key                        instance.Key
	Record, Override, Document []byte // nil: none
}

// Options configure a Watcher. Only Layout has to be set.
type Options struct {
	Layout schema.Layout
	// Prober probes instances whose models are not known, and pending adds. If it is
	// nil, no instance is verified or promoted, and an instance that etcd lacks is dropped.
	Prober Prober
	// Model is the model that every instance must serve, see instance.Facts.Serves; "" accepts any.
	Model string
	// Proxy is the name of the proxy whose fleet is followed, see
	// instance.Record.Proxies; "" follows all.
	Proxy string
	// Check returns an error, for display, for a record that this process cannot use; nil accepts
	// all.
	Check func(instance.Key, instance.Record) error
	// Learns reports whether a record lacks engine ids that are needed, see verify.Facts.Learns;
	// nil: never.
	Learns func(instance.Key, instance.Record) bool
	// Prepare is called with each snapshot before it is published, so that data that
	// readers derive from it is ready. It must not block. It may be nil.
	Prepare func(*instance.Snapshot)
	Log     logrus.FieldLogger // nil: silent
	// WaitingInterval is the mean time between two probes of an instance that has not answered yet,
	// default 2 s. For an instance that serves another model, it is five times as long.
	WaitingInterval time.Duration
	// CheckInterval is the mean time between two checks that etcd still answers, default 5 s.
	// Without traffic, a watch is silent even when etcd is unreachable.
	CheckInterval time.Duration
	// AuditInterval is the mean time between two comparisons of all keys with the events of the
	// watch, default 15 s. A watch on a wiped store delivers neither events nor an error.
	AuditInterval time.Duration
	// OrphanGrace is how long an instance that lost its lease, and answers, is
	// used while most of its role is registered, default 60 s. Otherwise it is used as
	// long as it answers.
	OrphanGrace time.Duration
	// StateDir is the directory of the file that keeps the membership across restarts; ""
	// writes none.
	StateDir string
	// StateAge is the maximum age of that file when it is read, default 24 h.
	StateAge time.Duration
	// ProbeTimeout bounds one probe, default 3 s.
	ProbeTimeout time.Duration
	// Local has the instances of the command line. They are used even if etcd does not hold them,
	// because it accepts no writes or does not answer. They are added after the first attempt to
	// read the membership, so that an operator's removal is known. Once they are in etcd, only the
	// key there counts.
	Local map[instance.Key]instance.Record
	// Writer performs the writes of the Watcher. If it is nil, no pending add is promoted
	// and nothing is written back.
	Writer Writer
}

// State describes how current the membership is.
type State string

// The states of a Watcher.
const (
	Cold    State = "cold"    // nothing read yet
	Listing State = "listing" // reading again; the last snapshot serves
	Live    State = "live"    // following every change
	Suspect State = "suspect" // two requests to etcd in a row got no answer
	Stale   State = "stale"   // no contact with etcd; the last snapshot serves
)

// States lists every state.
func States() []State { return []State{Cold, Listing, Live, Suspect, Stale} }

// Status is a copy of a Watcher's state and counters.
type Status struct {
	State       State
	Revision    int64     // up to which the snapshot is complete
	Applied     int64     // highest mod_revision of the membership's keys that the snapshot includes
	LastContact time.Time // last answer of any kind from etcd, by the local clock
	LastError   string    // of the last failed contact; "" after a success

	Lists       int64            // lists applied
	ListErrors  int64            // lists that failed
	WatchEnds   map[string]int64 // ends of the watch, by reason
	Checks      int64            // checks that were answered
	CheckErrors int64            // checks that failed
	Audits      int64            // audits that were answered
	AuditErrors int64            // audits that failed
	Drift       int64            // audits that caused a list
	Epochs      int64            // times that the store was found to be another or an older one
	Promotions  int64            // pending adds that this process promoted
	Rejected    int              // entries that cannot be used now
	Orphans     int              // instances in use whose lease is lost
	Held        int              // orphans that were lost together with a large part of their role
	Loaded      bool             // started from the file on disk
	Suspensions int64            // detected suspensions of this process
	Saved       time.Time        // time of the state in the file, by the local clock
	Saves       int64            // writes of the file
	Unsaved     string           // why the last write of the file failed, "" if it did not
	Kept        []string         // keys, without the root, that are active although a new store lacks them
}

// Watcher follows the membership in etcd and publishes it as immutable snapshots. One goroutine
// owns the state; readers are lock-free and never block it. While etcd is unavailable, the last
// snapshot stays.
type Watcher struct {
	cli *clientv3.Client
	o   Options
	log logrus.FieldLogger

	snapshot atomic.Pointer[instance.Snapshot]
	seen     atomic.Int64 // highest revision of the store in any answer; the owner sets it
	ready    chan struct{}
	relist   chan string   // reason of a requested list; capacity one: full means already requested
	inbox    chan message  // to the owner
	progress chan struct{} // requests a progress notification of the watch; capacity one

	suspension suspension

	saver *disk.Saver
	last  *disk.State // when the owner ended; read only after that

	slots chan struct{} // of queries about leases

	mu     sync.Mutex // guards status
	status Status
}

// New returns a Watcher that uses cli, which the caller closes after Run has returned.
func New(cli *clientv3.Client, o Options) *Watcher {
	o.WaitingInterval = cmp.Or(o.WaitingInterval, 2*time.Second)
	o.CheckInterval = cmp.Or(o.CheckInterval, 5*time.Second)
	o.AuditInterval = cmp.Or(o.AuditInterval, 15*time.Second)
	o.OrphanGrace = cmp.Or(o.OrphanGrace, time.Minute)
	o.StateAge = cmp.Or(o.StateAge, 24*time.Hour)
	o.ProbeTimeout = cmp.Or(o.ProbeTimeout, 3*time.Second)
	w := &Watcher{
		cli: cli, o: o, log: etcd.LogOrDiscard(o.Log),
		ready:    make(chan struct{}),
		relist:   make(chan string, 1),
		inbox:    make(chan message),
		progress: make(chan struct{}, 1),
		slots:    make(chan struct{}, maxLeaseQueries),
		status:   Status{State: Cold, WatchEnds: map[string]int64{}},
	}
	w.saver = w.newSaver()
	// A presence is renewed every third of its TTL, and must not end before a suspension is noticed.
	w.suspension.after, w.suspension.found = schema.DefaultTTL/2, w.resumed
	w.snapshot.Store(instance.NewSnapshot(0, nil))
	return w
}

// Run follows etcd until ctx ends; then it waits for its goroutines. It must be called only once.
// No error of etcd ends it.
func (w *Watcher) Run(ctx context.Context) {
	var work sync.WaitGroup
	work.Go(func() { w.runOwner(ctx) })
	work.Go(func() { w.follow(ctx) })
	work.Go(func() { w.check(ctx) })
	work.Go(func() { w.audit(ctx) })
	w.suspension.beat(time.Now())
	work.Go(func() { w.suspension.run(ctx) })
	if w.o.StateDir != "" {
		work.Go(func() { w.saver.Run(ctx) })
	}
	work.Wait()
	if w.last != nil {
		w.saver.Last(w.last)
	}
}

// Snapshot returns the newest snapshot. It is never nil and has revision 0
// before the first list.
func (w *Watcher) Snapshot() *instance.Snapshot { return w.snapshot.Load() }

// Ready returns a channel that is closed after the first list was applied, or after the file
// on disk was loaded and its instances were probed.
func (w *Watcher) Ready() <-chan struct{} { return w.ready }

// Status returns a copy of the current state.
func (w *Watcher) Status() Status {
	w.mu.Lock()
	defer w.mu.Unlock()
	s := w.status
	s.Kept = slices.Clone(w.status.Kept)
	s.WatchEnds = maps.Clone(w.status.WatchEnds)
	return s
}

// Relist requests a full list as soon as possible, for callers that doubt the events of the watch.
// It does not wait for the list.
func (w *Watcher) Relist(reason string) {
	select {
	case w.relist <- reason:
	default: // already requested
	}
}

func (w *Watcher) note(change func(*Status)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	change(&w.status)
}
