package engines

import (
	"github.com/pdmesh/pdmesh/internal/connector"
	"github.com/pdmesh/pdmesh/internal/instance"
)

// Blocks is the size of KV blocks that an instance must have in common with its partner.
// It is 0 if its connector copes with different sizes, or its record does not say.
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
