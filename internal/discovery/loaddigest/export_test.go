package loaddigest

var (
	Sum     = sum
	Present = present
	Keys    = keys
)

// Seen exports seen for tests.
type Seen = seen

// Update exports update for tests.
func (s *seen) Update(all []*ProxyLoad, own string) []*ProxyLoad { return s.update(all, own) }
