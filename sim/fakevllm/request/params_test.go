package request

import (
	"encoding/json"
	"testing"

	"github.com/pdmesh/pdmesh/sim/fakevllm/kvparams"
	"github.com/pdmesh/pdmesh/sim/fakevllm/pydantic"
)

// FuzzParseParams: no body makes it panic, and what it takes is JSON.
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
		for _, chat := range []bool{false, true} {
			p, err := parseParams(in, chat)
			if err != nil {
				if e := pydantic.AsError(err); e.Status < 400 || e.Status > 499 || !json.Valid(e.Append(nil, true)) {
					t.Fatalf("%q: %d %s", in, e.Status, e.Message)
				}
				continue
			}
			if !json.Valid(in) {
				t.Fatalf("%q is taken and is no JSON", in)
			}
			kvparams.ParseNIXL(p.KV, kvparams.NIXL)
			if chat {
				_ = p.Render()
			}
		}
	})
}
