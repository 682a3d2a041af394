package store

// KeepAudit limits the audit log of the Store to n entries.
func (s *Store) KeepAudit(n int64) { s.writer.maxAudit = n }
