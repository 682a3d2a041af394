package connector

import (
	"encoding/json"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestAppendNIXL(t *testing.T) {
	t.Parallel()
	for range 100 {
		token := NewToken()
		b := AppendNIXL(nil, NIXL, `e"1`, "chatcmpl-R\\", "::1", 5600, rand.IntN(5000), token)
		require.True(t, json.Valid(b), "%s", b)
		k := ParseNIXL(b, NIXL)
		if k.Form != Load || k.Claim.Token != token || k.Claim.EngineID != `e"1` || k.Host != "::1" || k.Port != 5600 {
			t.Fatalf("%s is read as %+v", b, k)
		}
		var f float64
		require.NoError(t, json.Unmarshal([]byte(token), &f))
		if again, _ := json.Marshal(f); string(again) == token {
			t.Fatalf("the token %s survives a float64", token)
		}
	}
}

func TestParseKV(t *testing.T) {
	t.Parallel()
	const produce = `{"do_remote_decode":true,"do_remote_prefill":false,"remote_engine_id":null,"remote_block_ids":null,"remote_host":null,"remote_port":null}`
	load := string(AppendNIXL(nil, NIXL, "e", "r", "h", 1, 5, NewToken()))
	for _, tt := range []struct {
		name, in string
		form     Form
	}{
		{"absent", "", Absent},
		{"empty", "{}", Absent},
		{"prefill form", produce, Produce},
		{"prefill form without a null", strings.Replace(produce, `,"remote_port":null`, "", 1), Bad},
		{"prefill form with another key", strings.Replace(produce, `remote_port`, "remote_ip", 1), Bad},
		{"prefill form with a value", strings.Replace(produce, `"remote_port":null`, `"remote_port":1`, 1), Bad},
		{"prefill form with more", strings.Replace(produce, `{`, `{"x":null,`, 1), Bad},
		{"both", strings.Replace(produce, `"do_remote_prefill":false`, `"do_remote_prefill":true`, 1), Bad},
		{"neither", strings.Replace(produce, `"do_remote_decode":true`, `"do_remote_decode":false`, 1), Bad},
		{"a boolean is a string", strings.Replace(produce, `"do_remote_decode":true`, `"do_remote_decode":"true"`, 1), Bad},
		{"a boolean is missing", strings.Replace(produce, `"do_remote_prefill":false,`, ``, 1), Bad},
		{"decode form", load, Load},
		{"decode form with a field of a newer version", strings.Replace(load, `{`, `{"new":[1],`, 1), Load},
		{"decode form without blocks", strings.Replace(load, `remote_block_ids`, "other", 1), Bad},
		{"decode form with null blocks", `{"do_remote_prefill":true,"do_remote_decode":false,"remote_block_ids":null,"remote_engine_id":"e","remote_request_id":"r","remote_host":"h","remote_port":1}`, Bad},
		{"decode form without request id", strings.Replace(load, `remote_request_id`, "other", 1), Bad},
		{"decode form with port as text", strings.Replace(load, `"remote_port":1`, `"remote_port":"1"`, 1), Bad},
		{"decode form with port 0", strings.Replace(load, `"remote_port":1`, `"remote_port":0`, 1), Bad},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			var raw []byte
			if tt.in != "" {
				raw = []byte(tt.in)
			}
			got := ParseNIXL(raw, NIXL)
			assert.Equal(t, tt.form, got.Form, "%s is form %d (%s), not %d", tt.in, got.Form, got.Why, tt.form)
		})
	}
	spoiled := strings.Replace(load, "1.0", "1", 1)
	if got := ParseNIXL([]byte(spoiled), NIXL); got.Form != Load || got.Claim.Token != "" {
		t.Errorf("re-encoded fields are not noticed: %+v", got)
	}
}
