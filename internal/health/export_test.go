package health

import "github.com/pdmesh/pdmesh/internal/instance"

// Silent reports whether the instance is ejected because it did not respond.
// Unlike one that refuses connections, it may still answer a request.
func (rs *Records) Silent(k instance.Key) bool {
	r := rs.read(k)
	return r.ejected && r.hard && !r.silentSince.IsZero()
}
