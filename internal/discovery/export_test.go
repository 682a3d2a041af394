package discovery

import "time"

// Suspend makes the Watcher believe that its process has not run for an hour.
func (w *Watcher) Suspend() { w.pulse.beat(time.Now().Add(-time.Hour)) }
