package program

import (
	"strings"

	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/internal/version"
)

// record is what the flags and the engine's surroundings say about the instance.
func (c *config) record() instance.Record {
	rec := c.facts
	rec.Connector, rec.HostID, rec.Agent, rec.Labels = c.connector, c.hostID, "pd-agent/"+version.Version, c.labels
	rec.Ports = c.side.shown(rec.Ports)
	if strings.HasPrefix(c.engine, "https://") {
		rec.Scheme = "https"
	}
	return rec
}
