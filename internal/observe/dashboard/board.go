package dashboard

import (
	"cmp"
	"context"
	"encoding/json"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/internal/observe/figures"
)

// Options configure a Board. All functions must be set. One goroutine calls them, except Proxies. Without
// viewers, only Members, Etcd, Own, Requests and Opinion are called.
type Options struct {
	Self    Self
	Members func() *instance.Snapshot
	// List returns an entry as /status lists it.
	List  func(*instance.Instance) instance.Listing
	Facts func(*instance.Instance) Facts
	Etcd  func() Etcd
	// Own returns the metrics of this proxy. It is called every five seconds.
	Own func() (*figures.Sample, error)
	// Requests returns the number of requests in progress.
	Requests func() int64
	// Findings returns descriptions of problems in the fleet.
	Findings func() []string
	// Proxies lists the running proxies, with their figures. It may block.
	Proxies func(context.Context) (Fleet, error)
	// Opinion returns this proxy's view of an instance. It is called every second.
	Opinion func(instance.Key) instance.Opinion
	Log     logrus.FieldLogger
}

// Board collects the contents of the page. It is safe for concurrent use.
type Board struct {
	o       Options
	page    *page
	viewers viewers

	closed chan struct{}
	close  sync.Once

	// The fields below are owned by the goroutine of Run.

	history *history
	feed    feed
	members *instance.Snapshot // last one in the feed
	kept    *instance.Snapshot // last one in the history
	tenures map[instance.Key]tenure
	lost    map[instance.Key]Lost
	passed  map[instance.Key]instance.View // views of Opinion in the feed
	etcd    string                         // last state of etcd in the feed
	ticks   int
	shown   shown

	proxies atomic.Pointer[proxies]
	listing atomic.Bool // a listing of the proxies is running
}

// shown is the state that all viewers have received.
type shown struct {
	frame    *frame // nil: there were no viewers
	at       time.Time
	feed     int64
	rounds   int64
	snapshot []byte // its snapshot event; nil: not encoded yet
}

// proxies is the last list of the proxies.
type proxies struct {
	Fleet
	at    time.Time // of Fleet
	tried time.Time // end of the last listing, which may have failed
	error string    // of the last listing
}

// figures returns the figures of all proxies; nil unless those of two or more proxies are current.
func (p *proxies) figures(now time.Time) *figures.Fleet {
	if p == nil || now.Sub(p.at) > currentFor {
		return nil
	}
	included := 0
	for _, one := range p.Proxies {
		if one.Missing == "" {
			included++
		}
	}
	if included < 2 || p.Figures == nil || p.Figures.Seconds == 0 { // from a single sample, they would be since the proxies started
		return nil
	}
	return p.Figures
}

// New creates a Board. It shows nothing until Run is called.
func New(o Options) *Board {
	b := &Board{o: o, page: newPage(), closed: make(chan struct{}), tenures: map[instance.Key]tenure{}, lost: map[instance.Key]Lost{}, passed: map[instance.Key]instance.View{}}
	b.viewers.joined, b.viewers.all = make(chan struct{}, 1), map[*viewer]bool{}
	b.history = newHistory()
	b.members = instance.NewSnapshot(0, nil)
	return b
}

// Close disconnects the viewers and refuses later ones. On nil it does nothing.
func (b *Board) Close() {
	if b != nil {
		b.close.Do(func() { close(b.closed) })
	}
}

// Run collects until ctx ends.
func (b *Board) Run(ctx context.Context) {
	defer b.Close()
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	b.follow(time.Now())
	for {
		select {
		case <-ctx.Done():
			return
		case <-b.members.Changed():
			b.follow(time.Now())
		case now := <-tick.C:
			b.tick(ctx, now)
		case <-b.viewers.joined:
			b.sendSnapshots(ctx, time.Now())
		}
	}
}

// follow reads the newest snapshot.
func (b *Board) follow(now time.Time) {
	is := b.o.Members()
	b.feed.follow(b.members, is, now)
	first := b.members.Revision == 0 && len(b.members.All()) == 0
	instance.Changes(b.members, is, func(was, is *instance.Instance) {
		if is == nil {
			if was.CanVanish() {
				b.lost[was.Key] = Lost{was.Role, was.Address, now.UnixMilli()}
			}
			return
		}
		delete(b.lost, is.Key)
		if t, ok := b.tenures[is.Key]; !ok || t.lease != is.Lease || t.create != is.CreateRevision {
			b.tenures[is.Key] = tenure{is.Lease, is.CreateRevision, now, first}
		}
	})
	b.members = is
}

// tick runs every second.
func (b *Board) tick(ctx context.Context, now time.Time) {
	b.updateEtcd(now)
	b.updateInstances(now)
	if b.kept != b.members {
		b.history.keep(b.members)
		maps.DeleteFunc(b.tenures, func(k instance.Key, _ tenure) bool { return b.history.of[k] == nil })
		b.kept = b.members
	}
	if b.ticks++; b.ticks%step == 0 {
		own, err := b.o.Own()
		if err != nil {
			b.o.Log.WithError(err).Error("read the metrics of this proxy")
		}
		b.history.point(b.o.Requests(), own, b.proxies.Load().figures(now))
	}
	if b.viewers.none() {
		b.shown = shown{}
		return
	}
	b.show(ctx, now)
}

// updateInstances adds changes of this proxy's view of instances, such as ejections, to the feed. It
// forgets old losses.
func (b *Board) updateInstances(now time.Time) {
	maps.DeleteFunc(b.lost, func(_ instance.Key, l Lost) bool { return now.UnixMilli()-l.At > lostFor.Milliseconds() })
	views := make(map[instance.Key]instance.View, len(b.passed))
	for _, in := range b.members.All() {
		o := b.o.Opinion(in.Key)
		if in.View == instance.Pending || o.View == b.passed[in.Key] {
			views[in.Key] = o.View
			continue
		}
		c := Change{Role: in.Role, Who: in.Address, Kind: bad, Text: "is " + string(o.View) + because(o.Reason)}
		if o.View == "" {
			c.Kind, c.Text = good, "is no longer "+string(b.passed[in.Key])
		}
		b.feed.add(c, now)
		views[in.Key] = o.View
	}
	b.passed = views
}

// updateEtcd adds an entry to the feed when etcd stops or starts responding. Reads of the membership get no
// entry, because they happen every few minutes.
func (b *Board) updateEtcd(now time.Time) {
	is := b.o.Etcd()
	switch {
	case is.State == b.etcd || is.reading():
		return
	case !is.Live:
		b.feed.add(Change{Kind: bad, Who: "etcd", Text: "is " + is.State + because(is.LastError)}, now)
	case b.etcd != "":
		b.feed.add(Change{Kind: good, Who: "etcd", Text: "responds again, and the watch is up to date"}, now)
	}
	b.etcd = is.State
}

// sendSnapshots sends the whole state to new viewers. It collects the state only if there were no viewers;
// otherwise the state collected for the others is at most a second old.
func (b *Board) sendSnapshots(ctx context.Context, now time.Time) {
	if b.shown.frame == nil {
		b.show(ctx, now)
	}
	b.viewers.welcome(b.snapshotEvent)
}

// show collects the state and sends the changes.
func (b *Board) show(ctx context.Context, now time.Time) {
	b.askProxies(ctx, now)
	is := b.collect()
	if was := b.shown.frame; was != nil {
		m := &message{
			Now: now.UnixMilli(), Rows: changed(was.rows, is.rows), Loads: changed(was.loads, is.loads),
			Parts: changed(was.parts, is.parts), Feed: b.feed.since(b.shown.feed),
		}
		switch {
		case b.history.switched:
			m.History = b.history.lines()
		case b.shown.rounds != b.history.rounds:
			m.Point = b.history.newest()
		}
		b.viewers.send(event("diff", m))
	}
	b.history.switched = false
	b.shown = shown{frame: is, at: now, feed: b.feed.n, rounds: b.history.rounds}
}

// snapshotEvent returns the snapshot event for the state that the viewers have received.
func (b *Board) snapshotEvent() []byte {
	if b.shown.snapshot == nil {
		t := &b.shown
		t.snapshot = event("snapshot", &message{
			Now: t.at.UnixMilli(), Self: &b.o.Self, Rows: t.frame.rows, Loads: t.frame.loads, Parts: t.frame.parts,
			Feed: b.feed.until(t.feed), History: b.history.lines(),
		})
	}
	return b.shown.snapshot
}

// collect returns a frame of the current state.
func (b *Board) collect() *frame {
	n := len(b.members.All())
	f := &frame{rows: make(map[string]json.RawMessage, n), loads: make(map[string]json.RawMessage, n), parts: map[string]json.RawMessage{}}
	for _, in := range b.members.All() {
		l, facts, name := b.o.List(in), b.o.Facts(in), f.name(in)
		f.rows[name] = encode(row(in, &l, facts, b.tenures[in.Key]))
		if in.View != instance.Pending {
			f.loads[name] = encode(load(&l, b.history.hit(in.Key)))
		}
	}
	f.parts["etcd"] = encode(b.o.Etcd())
	f.parts["revision"] = encode(b.members.Revision)
	f.parts["findings"] = encode(b.o.Findings())
	f.parts["requests"] = encode(b.o.Requests())
	f.parts["fleet"] = encode(b.history.fleet)
	f.parts["lost"] = encode(slices.SortedFunc(maps.Values(b.lost), func(a, b Lost) int { return cmp.Or(cmp.Compare(a.At, b.At), cmp.Compare(a.Address, b.Address)) }))
	if p := b.proxies.Load(); p != nil {
		f.parts["proxies"] = encode(map[string]any{"list": p.Proxies, "at": p.at.UnixMilli(), "error": p.error})
		f.parts["doctor"], f.parts["routes"] = encode(p.Fleet.Findings), encode(p.Routes)
		if p.Totals != nil {
			f.parts["failures"], f.parts["queues"], f.parts["totals"] = encode(failures(p.Totals)), encode(p.Totals.Queues), encode(labelled(p.Totals))
		}
	}
	return f
}

// encode returns the JSON of a value whose encoding cannot fail.
func encode(v any) json.RawMessage {
	b, _ := json.Marshal(v)
	return b
}

const (
	// proxiesEvery is the interval at which the proxies are listed while there are viewers, and
	// proxiesLimit bounds the time of one listing.
	proxiesEvery = 3 * time.Second
	proxiesLimit = 3 * time.Second
	// currentFor is the age up to which figures of other proxies are shown.
	currentFor = 4 * proxiesEvery
)

// askProxies lists the proxies in another goroutine.
func (b *Board) askProxies(ctx context.Context, now time.Time) {
	was := b.proxies.Load()
	if was != nil && now.Sub(was.tried) < proxiesEvery || !b.listing.CompareAndSwap(false, true) {
		return
	}
	go func() {
		defer b.listing.Store(false)
		ctx, cancel := context.WithTimeout(ctx, proxiesLimit)
		defer cancel()
		fleet, err := b.o.Proxies(ctx)
		is := &proxies{Fleet: fleet, at: time.Now()}
		is.tried = is.at
		if err != nil {
			is.error = instance.Printable(err.Error(), 200)
			if was != nil {
				is.Fleet, is.at = was.Fleet, was.at
			}
		}
		b.proxies.Store(is)
	}()
}
