package engines

import (
	"github.com/pdmesh/pdmesh/internal/connector"
	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/internal/proxy/config"
)

// Dialects returns a function for the connector of an instance: that of its record, otherwise def. For
// an unknown connector it returns "", so that the instance has no partner; the watcher rejects it.
func Dialects(def string) func(*instance.Instance) string {
	return func(in *instance.Instance) string {
		d, err := connector.OfRecord(&in.Record, def)
		if err != nil {
			return ""
		}
		return d.Name()
	}
}

// Builds returns a function for the vLLM build that both instances of a pair must have. It is nil
// without --version-groups.
func Builds(cfg *config.Proxy) func(*instance.Instance) string {
	if !cfg.VersionGroups {
		return nil
	}
	return term(cfg.Connector, func(t connector.Terms) string { return t.Build })
}

// Blocks returns a function for the KV block size that both instances of a pair must have. It returns 0
// if the connector supports different sizes or the record has none.
func Blocks(def string) func(*instance.Instance) int {
	return term(def, func(t connector.Terms) int { return t.Blocks })
}

// term returns a function for one requirement of an instance's connector, which of selects. It returns
// the zero value if the connector is unknown.
func term[T any](def string, of func(connector.Terms) T) func(*instance.Instance) T {
	return func(in *instance.Instance) (value T) {
		if d, err := connector.OfRecord(&in.Record, def); err == nil {
			value = of(d.Terms(in))
		}
		return value
	}
}
