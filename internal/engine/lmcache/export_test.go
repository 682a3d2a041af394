package lmcache

// Len returns the number of ids that are kept.
func (b *Inbox) Len() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.ids)
}
