package notice

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/pdmesh/pdmesh/internal/instance"
)

// blocks reports roles whose records have different KV block sizes. Depending on the connector,
// instances then cannot be paired, decode finds nothing in a shared pool, or the engines report
// the mismatch themselves.
func (v View) blocks(prefill, decode []*instance.Instance, say func(string, ...any)) {
	ps, ds := v.sizes(prefill), v.sizes(decode)
	for _, name := range slices.Sorted(maps.Keys(ps)) {
		p, d := ps[name], ds[name]
		for _, size := range slices.Sorted(maps.Keys(p)) {
			if len(d) == 0 || d[size] {
				continue
			}
			if v.sameOnly(prefill, name, size) {
				say("prefill (%s) has KV blocks of %d tokens, decode of %s, and there is no pair of them: start both with one --block-size", name, size, words(d))
				continue
			}
			say("prefill (%s) has KV blocks of %d tokens, decode of %s: where both do not have the same, a KV transfer may fail, and a shared pool is of no use",
				name, size, words(d))
		}
	}
}

// sameOnly reports whether a dialect pairs only instances with the same block size.
func (v View) sameOnly(list []*instance.Instance, name string, size int) bool {
	return v.Blocks != nil && slices.ContainsFunc(list, func(in *instance.Instance) bool {
		return v.Connector(in) == name && in.Record.BlockSize == size && v.Blocks(in) != 0
	})
}

// sizes returns the block sizes by dialect; instances without a size are left out.
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
