package request

import (
	"encoding/json"
	"testing"

	"github.com/pdmesh/pdmesh/sim/fakevllm/pydantic"
)

// FuzzParseParams checks that no body makes Parse panic, and that every body it accepts is JSON.
func FuzzParseParams(f *testing.F) {
	for _, s := range []string{
		`{"prompt":"hi","max_tokens":5}`, `{"messages":[{"role":"user","content":[{"type":"text","text":"x"}]}]}`,
		`{"prompt":[[1,2],[3]],"n":2,"stream":true,"stream_options":{"include_usage":true}}`,
		`{"messages":[{"role":"user","content":null,"tool_calls":[]}],"tools":[{"type":"function","function":{"name":"f"}}],"tool_choice":"required"}`,
		`{"prompt":["a","b"],"stop":["x"],"kv_transfer_params":{}}`, `{"prompt":"x","response_format":{"type":"json_object"}}`,
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, in []byte) {
		for _, api := range []API{Completions, Chat, Responses, Messages, Generate} {
			p, err := api.Parse(in)
			if err != nil {
				if e := pydantic.AsError(err); e.Status < 400 || e.Status > 499 || !json.Valid(e.Append(nil, true)) {
					t.Fatalf("%q: %d %s", in, e.Status, e.Message)
				}
				continue
			}
			if _, err := pydantic.Validate(in); err != nil {
				t.Fatalf("%q is accepted and is not JSON", in)
			}
			if p.Chat {
				_ = p.Render()
			}
		}
	})
}
