package setup

import (
	"strings"

	"github.com/pdmesh/pdmesh/internal/cli/version"
	"github.com/pdmesh/pdmesh/internal/instance"
)

// Record returns the record of the instance from settings and facts.
func (c *Config) Record() instance.Record {
	rec := c.Facts
	rec.Connector, rec.HostID, rec.Agent, rec.Labels = c.connector, c.HostID, "pd-agent/"+version.Version, c.labels
	rec.Ports = c.Side.shown(rec.Ports)
	if strings.HasPrefix(c.Engine, "https://") {
		rec.Scheme = "https"
	}
	return rec
}
