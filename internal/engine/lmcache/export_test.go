package lmcache

// Len returns the number of kept ids.
func (b *Inbox) Len() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.ids)
}
