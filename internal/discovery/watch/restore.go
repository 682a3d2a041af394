package watch

import (
	"context"
	"errors"
	"io/fs"
	"strconv"
	"time"

	"github.com/pdmesh/pdmesh/internal/discovery/disk"
	"github.com/pdmesh/pdmesh/internal/discovery/schema"
	"github.com/pdmesh/pdmesh/internal/instance"
	"go.etcd.io/etcd/api/v3/mvccpb"
)

// loadPatience bounds the wait for the first answers of instances from the disk, before a Watcher
// without etcd is ready.
const loadPatience = time.Second

// loadState reads the saved state. It is called once, before the first list.
func (o *owner) loadState() {
	dir := o.w.o.StateDir
	if dir == "" {
		return
	}
	log := o.w.log.WithField("file", disk.Path(dir))
	s, err := disk.Read(dir, o.table.layout.Root(), o.w.o.StateAge)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return
	case err != nil:
		log.Warn("the snapshot of the membership on disk is not used: " + err.Error())
		return
	}
	o.restoreState(s)
	o.w.note(func(st *Status) { st.Loaded, st.Saved = true, s.SavedAt })
	census := o.table.census
	log.WithField("instances", census[instance.Prefill].total()+census[instance.Decode].total()).Info("the membership is known from disk: instances that answer are served until etcd is read")
}

// newSaver returns the saver of the file, which requests the state from the owner.
func (w *Watcher) newSaver() *disk.Saver {
	return disk.NewSaver(disk.SaverOptions{
		Dir: w.o.StateDir, Age: w.o.StateAge, Log: w.log,
		Take: func(ctx context.Context) (*disk.State, bool) {
			reply := make(chan *disk.State, 1)
			if !w.send(ctx, func(o *owner) { reply <- o.stateToSave() }) {
				return nil, false
			}
			return <-reply, true
		},
		Wrote: func(at time.Time, err error) {
			w.note(func(st *Status) {
				if err != nil {
					st.Unsaved = err.Error()
					return
				}
				st.Saves++
				st.Saved, st.Unsaved = at, ""
			})
		},
	})
}

// readyFromDisk reports whether the instances that were loaded from disk have been probed, or
// loadPatience has passed.
func (o *owner) readyFromDisk() bool {
	if o.silence() > 0 || time.Since(o.began) >= loadPatience {
		return true
	}
	for _, e := range o.table.absent {
		if e.Kind == schema.KindInstance && !o.facts.Elsewhere(&e.rec) && e.absent.kind == loaded && !e.absent.proven && e.absent.failed == 0 {
			return false
		}
	}
	return true
}

// saved reports whether an entry is written to disk. Pending adds, unwritten instances of the
// command line, and entries that cannot be decoded are not.
func (e *entry) saved() bool { return e.good && e.Kind != schema.KindPending && e.mod > 0 }

// stateToSave returns the membership to save, nil if nothing is known. It shares the values of the
// table's entries, which are immutable.
func (o *owner) stateToSave() *disk.State {
	if !o.listed && !o.restored {
		return nil
	}
	s := &disk.State{
		Head: disk.Head{
			Format: disk.Format, Root: o.table.layout.Root(), Revision: o.table.revision, Schema: o.schema, Order: o.order,
			SavedAt: time.Now().UTC(),
		},
		Entries: make([]disk.Entry, 0, len(o.table.order)),
	}
	if o.cluster != 0 {
		s.Cluster = strconv.FormatUint(o.cluster, 16)
	}
	answers := o.listed
	for _, e := range o.table.order {
		if !e.saved() {
			continue
		}
		d := disk.Entry{Key: e.Path(), Value: e.value, Create: e.create, Mod: e.mod, Version: e.version, Lease: e.leased}
		if e.absent != nil {
			answers = answers || e.Kind == schema.KindInstance && e.absent.proven
			switch e.absent.kind {
			case orphaned, leaseQueried:
				d.Absent = disk.Orphan
			case kept:
				d.Absent = disk.Kept
			}
		}
		s.Entries = append(s.Entries, d)
	}
	if !answers {
		s.SavedAt = o.loadedAt // not confirmed since
	}
	return s
}

// restoreState loads the saved state. It is provisional: every instance must answer before it
// is used, and the first list replaces it.
func (o *owner) restoreState(s *disk.State) {
	now := time.Now()
	for _, d := range s.Entries {
		n := o.table.layout.Parse(o.table.layout.Root() + d.Key)
		if n.Kind == schema.KindOther || n.Kind == schema.KindPending {
			continue
		}
		e := decodeEntry(n, &mvccpb.KeyValue{
			Value: d.Value, CreateRevision: d.Create, ModRevision: d.Mod, Version: d.Version, Lease: d.Lease,
		}, nil)
		e.absent = &absence{kind: loaded, since: now, proven: !e.shown()}
		switch d.Absent {
		case disk.Orphan:
			e.absent.kind = orphaned
		case disk.Kept:
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
	o.w.seen.Store(0) // otherStore decides by the list whether the store is the same
	o.loadedAt = s.SavedAt
	o.restored = len(o.table.order) > 0
	o.dropEnded()
}
