package digest

var (
	Sum     = sum
	Present = present
)

// Seen gives tests access to seen.
type Seen = seen

// Update gives tests access to update.
func (s *seen) Update(all []*ProxyLoad, own string) []*ProxyLoad { return s.update(all, own) }
