package connector_test

import (
	"testing"
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
		if err != nil || h.Empty() != empty {
			t.Errorf("%s: %q, %v", answer, h.Params, err)
		}
	}
	if _, err := d.TransferParams([]byte(`{"kv_transfer_params":`)); err == nil {
		t.Error("half an answer is taken")
	}
}
