package engines

import (
	"github.com/pdmesh/pdmesh/internal/connector"
	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/internal/proxy/config"
)

// PairKeys returns a function for the pair key of an instance. An unknown connector has the zero key, so
// that the instance has no partner; the watcher rejects it.
func PairKeys(cfg *config.Proxy) func(*instance.Instance) connector.PairKey {
	return func(in *instance.Instance) (k connector.PairKey) {
		if d, err := connector.OfRecord(&in.Record, cfg.Connector); err == nil {
			k = connector.PairKeyOf(d, in)
		}
		if !cfg.VersionGroups {
			k.Build = ""
		}
		return k
	}
}
