package notice

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/pdmesh/pdmesh/internal/instance"
)

// blocks tells of roles whose KV caches have blocks of different sizes, as far as records
// say: of a pool decode then finds nothing, and what other connectors make of it their
// engines say.
func (v View) blocks(prefill, decode []*instance.Instance, say func(string, ...any)) {
	ps, ds := v.sizes(prefill), v.sizes(decode)
	for _, name := range slices.Sorted(maps.Keys(ps)) {
		p, d := ps[name], ds[name]
		for _, size := range slices.Sorted(maps.Keys(p)) {
			if len(d) == 0 || d[size] {
				continue
			}
			say("prefill (%s) has KV blocks of %d tokens, decode of %s: where both do not have the same, a hand-over may fail, and a shared pool is of no use",
				name, size, words(d))
		}
	}
}

// sizes are those of the blocks, by dialect; who does not say is left out.
func (v View) sizes(list []*instance.Instance) map[string]map[int]bool {
	out := map[string]map[int]bool{}
	for _, in := range list {
		if in.Record.BlockSize == 0 {
			continue
		}
		name := v.Connector(in)
		if out[name] == nil {
			out[name] = map[int]bool{}
		}
		out[name][in.Record.BlockSize] = true
	}
	return out
}

func words(sizes map[int]bool) string {
	var out []string
	for _, size := range slices.Sorted(maps.Keys(sizes)) {
		out = append(out, fmt.Sprint(size))
	}
	return strings.Join(out, " and ")
}
