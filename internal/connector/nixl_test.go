package connector_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Transfer params that are an empty object count as missing, so that decode does not have to detect it.
func TestNIXL_EmptyTransferParams(t *testing.T) {
	t.Parallel()
	d := newDialect(t, "nixl")
	for answer, empty := range map[string]bool{
		`{}`: true, `{"kv_transfer_params":null}`: true, `{"kv_transfer_params":{}}`: true, `{"kv_transfer_params": { } }`: true,
		`{"kv_transfer_params":{"remote_host":"h"}}`: false,
	} {
		h, err := d.TransferParams([]byte(answer))
		require.NoError(t, err, "%s: %q", answer, h.Params)
		assert.Equal(t, empty, h.Empty(), "%s: %q", answer, h.Params)
	}
	_, err := d.TransferParams([]byte(`{"kv_transfer_params":`))
	assert.Error(t, err, "half an answer is taken")
}
