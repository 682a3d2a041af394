package http1

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestBuffer(t *testing.T) {
	t.Parallel()
	var b Buffer
	require.True(t, b.Bytes() == nil, "it holds something")
	b.Free()
	b.Add(0)
	assert.True(t, b.b == nil, "a read in vain leaves it with memory")
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
	b.Take(len(want))
	assert.True(t, b.b == nil && b.Bytes() == nil, "an empty buffer keeps its memory")
}
