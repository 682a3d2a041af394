package response_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/pdmesh/pdmesh/internal/openai"
	"github.com/pdmesh/pdmesh/internal/openai/response"
)

func TestTransferParams_Hidden(t *testing.T) {
	t.Parallel()
	const kv = `"kv_transfer_params":{"remote_host":"10.0.0.1"}`
	for _, tc := range []struct {
		kind       openai.Kind
		said, want string
	}{
		{openai.Chat, `{"id":"x",` + kv + `,"ec_transfer_params":{"a":1},"n":null}`, `{"id":"x","kv_transfer_params":null,"ec_transfer_params":null,"n":null}`},
		{openai.Chat, `{"id":"x","kv_transfer_params":null}`, `{"id":"x","kv_transfer_params":null}`},
		{openai.Chat, `{` + kv + `,` + kv + `}`, `{"kv_transfer_params":null,"kv_transfer_params":null}`},
		{openai.Chat, `{"choices":[{"text":"{\"kv_transfer_params\":{}}"}]}`, `{"choices":[{"text":"{\"kv_transfer_params\":{}}"}]}`},
		{openai.Chat, "data: {\"choices\":[]," + kv + "}\n\n", "data: {\"choices\":[],\"kv_transfer_params\":null}\n\n"},
		{openai.Responses, `{"output":[],` + kv + `}`, `{"output":[],"kv_transfer_params":null}`},
		{openai.Responses, "event: response.completed\ndata: " + `{"response":{` + kv + `,"id":"x"}}` + "\n\n", "event: response.completed\ndata: " + `{"response":{"kv_transfer_params":null,"id":"x"}}` + "\n\n"},
		{openai.Messages, `{"id":"x",` + kv + `}`, `{"id":"x"}`},
		{openai.Messages, `{` + kv + `, "id":"x"}`, `{"id":"x"}`},
		{openai.Messages, `{` + kv + `}`, `{}`},
		{openai.Messages, `{"a":1 , "ec_transfer_params":null,` + kv + `,"b":2}`, `{"a":1,"b":2}`},
		{openai.Messages, `{` + kv + `,"ec_transfer_params":1, ` + kv + `}`, `{}`},
		{openai.Messages, `{ ` + kv + `,"a":1,` + kv + `,` + kv + ` , "b":2}`, `{ "a":1 , "b":2}`},
		{openai.Messages, `no JSON {`, `no JSON {`},
		{openai.Chat, `{` + kv + `,"id":`, `{` + kv + `,"id":`},
	} {
		said := []byte(tc.said)
		if got := response.HideTransferParams(tc.kind, said); string(got) != tc.want {
			t.Errorf("%s: %s\ngot  %s\nwant %s", tc.kind.Path(), tc.said, got, tc.want)
		}
		assert.Equal(t, tc.said, string(said), "was changed in place")
	}
	for text, want := range map[string]bool{
		`{"text":"kv_transfer_params\""}`: false, `{"kv_transfer_params":null,"ec_transfer_params" : null}`: false, kv: true,
		`{"kv_transfer_params":null,"ec_transfer_params":{}}`: true,
	} {
		assert.Equal(t, want, response.MayHaveTransferParams([]byte(text)),
			"%s: there is something to hide: %v", text, !want)
	}
}

// All members are hidden in one pass, however often an engine repeats them.
func TestTransferParams_Repeated(t *testing.T) { //nolint:paralleltest // it counts allocations
	for _, kind := range []openai.Kind{openai.Chat, openai.Messages} {
		said := []byte(`{` + strings.Repeat(`"kv_transfer_params":{},`, 1000) + `"id":"x"}`)
		assert.Less(t, testing.AllocsPerRun(1, func() { response.HideTransferParams(kind, said) }), 50.0, "allocations, %s", kind.Path())
	}
}
