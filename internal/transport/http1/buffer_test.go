package http1

import (
	"bytes"
	"testing"

	"github.com/pdmesh/pdmesh/sim/testkit/assert"
)

func TestBuffer(t *testing.T) {
	t.Parallel()
	var b Buffer
	if b.Bytes() != nil {
		t.Fatal("it holds something")
	}
	b.Free()
	if b.Add(0); b.b != nil {
		t.Error("a read in vain leaves it with memory")
	}
	var want []byte
	for i := range 3 * bufferSize { // beyond its initial capacity
		if i%3 == 2 { // some bytes are taken meanwhile
			b.Take(1)
			want = want[1:]
		}
		b.Free()[0] = byte(i)
		b.Add(1)
		want = append(want, byte(i))
	}
	assert.True(t, bytes.Equal(b.Bytes(), want), "what was added is not what is there")
	if b.Take(len(want)); b.b != nil || b.Bytes() != nil {
		t.Error("an empty buffer keeps its memory")
	}
}
