package notice_test

import (
	"testing"

	"github.com/stretchr/testify/assert"

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
			"prefill speaks nixl with KV blocks of 16 tokens, decode nixl with KV blocks of 32 tokens and nixl with KV blocks of 64 tokens: where both do not have the same size, a KV transfer may fail, and a shared pool is of no use"},
		{"of no pair", []*instance.Instance{in(p, "p:1", blocks(16), dialect("p2p")), in(d, "d:1", blocks(32), dialect("p2p"))},
			"1 prefill instance is unused: prefill speaks p2p with KV blocks of 16 tokens, decode p2p with KV blocks of 32 tokens, and there is no pair of them"},
		{"the same", []*instance.Instance{in(p, "p:1", blocks(16)), in(d, "d:1", blocks(16))}, ""},
		{"one of two", []*instance.Instance{in(p, "p:1", blocks(16)), in(d, "d:1", blocks(16)), in(d, "d:2", blocks(32))}, ""},
		{"decode does not say", []*instance.Instance{in(p, "p:1", blocks(16)), in(d, "d:1")}, ""},
		{"prefill does not say", []*instance.Instance{in(p, "p:1"), in(d, "d:1", blocks(16))}, ""},
		{"of another connector", []*instance.Instance{in(p, "p:1", blocks(16)), in(d, "d:1"), in(d, "d:2", blocks(32), dialect("plain"))}, ""},
	} {
		assert.Equal(t, tc.want, newFleet(tc.list...).words(), tc.name)
	}
}
