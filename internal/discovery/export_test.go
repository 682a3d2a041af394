package discovery

import "time"

// Suspend makes the Watcher believe that its process has not run for an hour.
func (w *Watcher) Suspend() { w.pulse.beat(time.Now().Add(-time.Hour)) }

// SuspendFor makes the Watcher believe that its process has not run for a time.
func (w *Watcher) SuspendFor(d time.Duration) { w.pulse.beat(time.Now().Add(-d)) }

// EncodeValue writes an override or a pending add as the Store does.
func EncodeValue(v any) ([]byte, error) { return encode(v) }

// KeepAudit makes the Store keep so many audit entries.
func (s *Store) KeepAudit(n int64) { s.maxAudit = n }
