package engines

import (
	"github.com/pdmesh/pdmesh/internal/config"
	"github.com/pdmesh/pdmesh/internal/connector"
	"github.com/pdmesh/pdmesh/internal/instance"
)

// Dialects resolves the connector of an instance: its record's own, or the
// proxy's default. An unknown one resolves to nothing and pairs with nobody
// that this proxy could talk to; the watcher shows it as rejected.
func Dialects(def string) func(*instance.Instance) string {
	return func(in *instance.Instance) string {
		d, err := connector.OfRecord(&in.Record, def)
		if err != nil {
			return ""
		}
		return d.Name()
	}
}

// Builds is what an instance must have in common with its partner. It is nil if nothing
// is compared.
func Builds(cfg *config.Proxy) func(*instance.Instance) string {
	if !cfg.VersionGroups {
		return nil
	}
	resolve := Dialects(cfg.Connector)
	return func(in *instance.Instance) string {
		d, err := connector.New(resolve(in))
		if err != nil {
			return ""
		}
		return d.Terms(in).Build
	}
}
