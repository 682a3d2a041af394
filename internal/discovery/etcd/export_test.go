package etcd

import "context"

// Start makes Members load what was saved.
func (m *Members) Start() { m.load() }

// Update makes Members read the member list once.
func (m *Members) Update(ctx context.Context) { m.update(ctx) }

// Try makes Members use the addresses if they belong to the cluster.
func (m *Members) Try(ctx context.Context, cluster uint64, addresses ...string) {
	m.cluster, m.known = cluster, map[string]uint64{}
	for _, a := range addresses {
		m.known[a] = 0
	}
	m.apply(ctx)
}

// MemberAddress returns the endpoint of a member's client URL, "" if it must not be used.
func MemberAddress(url string, secure bool) string {
	address, ok := memberAddress(url, secure)
	if !ok || !usableMember(address) {
		return ""
	}
	return address
}
