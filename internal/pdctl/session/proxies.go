package session

import "github.com/pdmesh/pdmesh/internal/discovery/lease"

// DefaultConnector returns the connector that all proxies assume for records that name none,
// or "" if they differ or do not publish it.
func DefaultConnector(proxies []lease.ProxyPresence) string {
	for _, p := range proxies {
		if p.Connector != proxies[0].Connector {
			return ""
		}
	}
	if len(proxies) == 0 {
		return ""
	}
	return proxies[0].Connector
}
