package loadgen_test

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pdmesh/pdmesh/sim/loadgen"
)

const twoEntries = `{"timestamp": 0, "input_length": 600, "output_length": 5, "hash_ids": [7, 8]}

{"timestamp": 3000, "input_length": 512, "output_length": 1, "hash_ids": [7]}
`

func TestReadTrace(t *testing.T) {
	t.Parallel()
	entries, err := loadgen.ReadTrace(strings.NewReader(twoEntries), 0)
	require.NoError(t, err)
	require.True(t, len(entries) == 2 && entries[0].InputLength == 600 && entries[1].OutputLength == 1,
		"got %+v", entries)
	assert.Equal(t, 150*time.Millisecond, entries[1].At(20), "due at")
	if limited, err := loadgen.ReadTrace(strings.NewReader(twoEntries), 1); err != nil || len(limited) != 1 {
		t.Errorf("limit 1: %d entries, %v", len(limited), err)
	}
}

func TestReadTraceRefuses(t *testing.T) {
	t.Parallel()
	tests := []struct{ name, text, want string }{
		{"empty", "", "empty"},
		{"not JSON", "hello\n", "line 1"},
		{"too few blocks", `{"timestamp":0,"input_length":1025,"output_length":1,"hash_ids":[1,2]}`, "3 blocks"},
		{"too many blocks", `{"timestamp":0,"input_length":512,"output_length":1,"hash_ids":[1,2]}`, "1 blocks"},
		{"no output", `{"timestamp":0,"input_length":1,"output_length":0,"hash_ids":[1]}`, "at least 1"},
		{"no input", `{"timestamp":0,"input_length":0,"output_length":1,"hash_ids":[]}`, "at least 1"},
		{"back in time", twoEntries + `{"timestamp":2000,"input_length":1,"output_length":1,"hash_ids":[1]}`, "goes back"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			_, err := loadgen.ReadTrace(strings.NewReader(tt.text), 0)
			assert.True(t, errors.Is(err, loadgen.ErrTrace) && strings.Contains(err.Error(), tt.want),
				"error %v, want ErrTrace with %q", err, tt.want)
		})
	}
}

func TestEqualBlocks_EqualTokens(t *testing.T) {
	t.Parallel()
	entries, err := loadgen.ReadTrace(strings.NewReader(twoEntries), 0)
	require.NoError(t, err)
	collect := func(e loadgen.Entry) (ids []int) {
		e.EachToken(16, 1<<17, func(id int) { ids = append(ids, id) })
		return ids
	}
	a, b := collect(entries[0]), collect(entries[1])
	require.True(t, len(a) == 600 && len(b) == 512, "%d and %d tokens, want 600 and 512", len(a), len(b))
	assert.Equal(t, b, a[:512], "the same block gave other tokens")
	assert.False(t, slices.Equal(a[512:], b[:88]), "different blocks gave the same tokens")
	lo, hi := slices.Min(a), slices.Max(a)
	assert.True(t, lo >= 16 && hi < 1<<17, "ids from %d to %d are out of range", lo, hi)
}
