package watch

import (
	"context"
	"errors"
	"io/fs"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"github.com/pdmesh/pdmesh/internal/discovery/etcd"
	"github.com/pdmesh/pdmesh/internal/discovery/schema"
	"go.etcd.io/etcd/api/v3/mvccpb"
)

const (
	// savePause is the least time between two writes of the snapshot.
	savePause = time.Second
	// leasedPause is that time while leased instances change, and none comes or goes. To sync a
	// file brings to the disk what else was written to it lately, the access log
	// above all, and costs as much as some hundred requests; and after a start
	// whoever is in the snapshot is asked before it is used in any case.
	leasedPause = 10 * time.Second
	// loadPatience is how long a watcher that knows something from the disk only
	// waits for the first answers until it says that it is ready.
	loadPatience = time.Second
)

// loadState reads the disk, once, before anything else is known.
func (o *owner) loadState() {
	dir := o.w.o.StateDir
	if dir == "" {
		return
	}
	log := o.w.log.WithField("file", filepath.Join(dir, stateFile))
	s, err := readState(dir, o.table.layout.Root(), o.w.o.StateAge)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return
	case err != nil:
		log.Warn("the snapshot of the membership on disk is not used: " + err.Error())
		return
	}
	o.restoreState(s)
	o.w.note(func(st *Status) { st.Loaded, st.Saved = true, s.SavedAt })
	log.WithField("instances", len(s.Entries)).Info("the membership is known from disk: instances that answer are served until etcd is read")
}

// save writes the snapshot when something has changed, soon if somebody has come
// or gone or that is an operator's will, and once in a while so that it does not grow old while nothing
// changes.
func (w *Watcher) save(ctx context.Context) {
	fresh := time.NewTicker(max(w.o.StateAge/24, savePause))
	defer fresh.Stop()
	failed := false
	var last time.Time
	for {
		select {
		case <-ctx.Done():
			return
		case <-w.durableDirty:
		case <-w.unsaved:
			if !w.putOff(ctx, leasedPause-time.Since(last)) {
				return
			}
		case <-fresh.C:
		}
		last = time.Now()
		for _, done := range []chan struct{}{w.durableDirty, w.unsaved} { // the image has it
			select {
			case <-done:
			default:
			}
		}
		reply := make(chan *image, 1)
		if !w.tell(ctx, message{save: reply}) {
			return
		}
		if m := <-reply; m != nil {
			failed = w.write(m, failed)
		}
		if !etcd.Pause(ctx, savePause) {
			return
		}
	}
}

// putOff waits for so long, or until an operator's will is to be saved. It tells
// whether ctx still runs.
func (w *Watcher) putOff(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-w.durableDirty:
	case <-t.C:
	}
	return true
}

// write writes one snapshot and tells whether that failed, which is logged
// when it begins only.
func (w *Watcher) write(m *image, failed bool) bool {
	err := writeState(w.o.StateDir, m)
	if err != nil {
		if !failed {
			w.log.WithField("error", err).Warn("cannot save the membership to --state-dir; trying on")
		}
		w.note(func(st *Status) { st.SaveErrors++ })
		return true
	}
	w.note(func(st *Status) { st.Saves++; st.Saved = m.head.SavedAt })
	return false
}

// readyFromDisk tells that what is known from the disk has been asked, or has
// had its time.
func (o *owner) readyFromDisk() bool {
	if o.silence() > 0 || time.Since(o.began) >= loadPatience {
		return true
	}
	for _, e := range o.table.absent {
		if e.Kind == schema.KindInstance && !o.facts.elsewhere(&e.rec) && e.absent.kind == loaded && !e.absent.proven && e.absent.failed == 0 {
			return false
		}
	}
	return true
}

// imageOf takes the image of the present state. That is done on the goroutine
// of the owner, so it copies pointers only.
func (o *owner) imageOf() *image {
	m := &image{
		head: diskState{
			Format: stateFormat, Root: o.table.layout.Root(), Revision: o.table.revision, Schema: o.schema, Order: o.order,
			SavedAt: time.Now().UTC(),
		},
		order: slices.Clone(o.table.order),
	}
	if o.cluster != 0 {
		m.head.Cluster = strconv.FormatUint(o.cluster, 16)
	}
	answers := o.listed
	for _, e := range o.table.absent {
		if !e.saved() {
			continue
		}
		answers = answers || (e.Kind == schema.KindInstance && e.absent.proven)
		if m.absent == nil {
			m.absent = make(map[*entry]string, len(o.table.absent))
		}
		switch e.absent.kind {
		case orphaned, asking:
			m.absent[e] = diskOrphan
		case kept:
			m.absent[e] = diskKept
		}
	}
	if !answers {
		m.head.SavedAt = o.loadedAt // nothing has confirmed it since
	}
	return m
}

// restoreState takes in what was on disk. It is only a beginning: every
// instance must answer before it is used, and the first list decides.
func (o *owner) restoreState(s *diskState) {
	now := time.Now()
	for _, d := range s.Entries {
		n := o.table.layout.Parse(o.table.layout.Root() + d.Key)
		if n.Kind == schema.KindOther || n.Kind == schema.KindPending {
			continue
		}
		e := DecodeEntry(n, &mvccpb.KeyValue{
			Value: d.Value, CreateRevision: d.Create, ModRevision: d.Mod, Version: d.Version, Lease: d.Lease,
		}, nil)
		e.absent = &absence{kind: loaded, since: now, proven: e.Kind == schema.KindOverride}
		switch d.Absent {
		case diskOrphan:
			e.absent.kind = orphaned
		case diskKept:
			e.absent.kind = kept
		}
		o.table.add(e)
		o.table.applied = max(o.table.applied, d.Mod)
	}
	o.table.sort()
	o.table.touchAll()
	o.table.revision, o.schema, o.order = s.Revision, s.Schema, s.Order
	if id, err := strconv.ParseUint(s.Cluster, 16, 64); err == nil {
		o.cluster = id
	}
	o.w.seen.Store(0) // the list itself tells whether the store is the same
	o.loadedAt = s.SavedAt
	o.restored, o.table.dirty = len(o.table.order) > 0, true
	o.settle()
}
