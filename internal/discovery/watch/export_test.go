package watch

import "time"

// Suspend makes the Watcher believe that its process has not run for an hour.
func (w *Watcher) Suspend() { w.suspension.pulse.beat(time.Now().Add(-time.Hour)) }

// SuspendFor makes the Watcher believe that its process has not run for a time.
func (w *Watcher) SuspendFor(d time.Duration) { w.SuspendUntil(time.Now(), d) }

// SuspendUntil makes the Watcher believe that its process has not run for a time before now.
func (w *Watcher) SuspendUntil(now time.Time, d time.Duration) { w.suspension.pulse.beat(now.Add(-d)) }
