package store

// KeepAudit makes the Store keep so many audit entries.
func (s *Store) KeepAudit(n int64) { s.writer.maxAudit = n }
