package store

// KeepAudit makes the Store keep n audit entries.
func (s *Store) KeepAudit(n int64) { s.writer.maxAudit = n }
