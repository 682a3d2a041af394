package discovery

import (
	"context"
	"errors"
	"io/fs"
	"path/filepath"
	"time"
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
	s, err := readState(dir, o.table.layout.root, o.w.o.StateAge)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return
	case err != nil:
		log.Warn("the snapshot of the membership on disk is not used: " + err.Error())
		return
	}
	o.restoreState(s)
	o.w.note(func(st *WatcherStatus) { st.Loaded, st.Saved = true, s.SavedAt })
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
		case <-w.willed:
		case <-w.unsaved:
			if !w.putOff(ctx, leasedPause-time.Since(last)) {
				return
			}
		case <-fresh.C:
		}
		last = time.Now()
		for _, done := range []chan struct{}{w.willed, w.unsaved} { // the image has it
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
		if !pause(ctx, savePause) {
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
	case <-w.willed:
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
		w.note(func(st *WatcherStatus) { st.SaveErrors++ })
		return true
	}
	w.note(func(st *WatcherStatus) { st.Saves++; st.Saved = m.head.SavedAt })
	return false
}

// readyFromDisk tells that what is known from the disk has been asked, or has
// had its time.
func (o *owner) readyFromDisk() bool {
	if o.silence() > 0 || time.Since(o.began) >= loadPatience {
		return true
	}
	for _, e := range o.table.absent {
		if e.kind == kindInstance && !o.facts.elsewhere(&e.rec) && e.absent.kind == loaded && !e.absent.proven && e.absent.failed == 0 {
			return false
		}
	}
	return true
}
