package connector_test

import (
	"testing"
)

// An answer hands something over or it does not: an object with nothing in it is nothing,
// and decode must not be left to find that out.
func TestNIXLHandover(t *testing.T) {
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
