package notice_test

import (
	"testing"

	"github.com/pdmesh/pdmesh/internal/instance"
)

func blocks(size int) func(*instance.Instance) {
	return func(i *instance.Instance) { i.Record.BlockSize = size }
}

// A notice reports different block sizes of the two roles, if both roles report sizes and
// have none in common.
func TestBlocksOfDifferentSizes(t *testing.T) {
	t.Parallel()
	const p, d = instance.Prefill, instance.Decode
	for _, tc := range []struct {
		name string
		list []*instance.Instance
		want string
	}{
		{"different", []*instance.Instance{in(p, "p:1", blocks(16)), in(d, "d:1", blocks(32)), in(d, "d:2", blocks(64))},
			"prefill (nixl) has KV blocks of 16 tokens, decode of 32 and 64: where both do not have the same, a KV transfer may fail, and a shared pool is of no use"},
		{"of no pair", []*instance.Instance{in(p, "p:1", blocks(16), connector("p2p")), in(d, "d:1", blocks(32), connector("p2p"))},
			"prefill (p2p) has KV blocks of 16 tokens, decode of 32, and there is no pair of them: start both with one --block-size"},
		{"the same", []*instance.Instance{in(p, "p:1", blocks(16)), in(d, "d:1", blocks(16))}, ""},
		{"one of two", []*instance.Instance{in(p, "p:1", blocks(16)), in(d, "d:1", blocks(16)), in(d, "d:2", blocks(32))}, ""},
		{"decode does not say", []*instance.Instance{in(p, "p:1", blocks(16)), in(d, "d:1")}, ""},
		{"prefill does not say", []*instance.Instance{in(p, "p:1"), in(d, "d:1", blocks(16))}, ""},
		{"of another connector", []*instance.Instance{in(p, "p:1", blocks(16)), in(d, "d:1"), in(d, "d:2", blocks(32), connector("plain"))}, ""},
	} {
		if got := newFleet(tc.list...).words(); got != tc.want {
			t.Errorf("%s: %q", tc.name, got)
		}
	}
}
