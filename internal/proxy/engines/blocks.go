package engines

import (
	"github.com/pdmesh/pdmesh/internal/connector"
	"github.com/pdmesh/pdmesh/internal/instance"
)

// Blocks returns a function for the KV block size that an instance and its partner must have
// in common. It returns 0 if the connector supports different sizes or the record has none.
func Blocks(def string) func(*instance.Instance) int {
	resolve := Dialects(def)
	return func(in *instance.Instance) int {
		d, err := connector.New(resolve(in))
		if err != nil {
			return 0
		}
		return d.Terms(in).Blocks
	}
}
