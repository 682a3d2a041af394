package request_test

import (
	"bytes"
	"testing"

	"github.com/pdmesh/pdmesh/internal/openai"
	"github.com/pdmesh/pdmesh/internal/openai/request"
)

func TestReading(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name, body, want string
		kind             openai.Kind
	}{
		{"a completion", `{"prompt":"p q","model":"m"}`, `"p q"`, openai.Completion},
		{"a chat", `{"messages":[1,2],"tools":[{"a":1}],"cache_salt":"s","system":null}`, `"s"[{"a":1}][1,2]`, openai.Chat},
		{"a response", `{"input":"i","instructions":"be","tools":[]}`, `[]"be""i"`, openai.Responses},
		{"nothing", `{}`, ``, openai.Chat},
		{
			"marks", `{"messages":[{"text":"a","cache_control":{"type":"ephemeral","ttl":"1h"}},{"text":"b","cache_control":{"type":"ephemeral"},"x":1}],"system":[{"text":"s","cache_control":{}}]}`,
			`[{"text":"s"}][{"text":"a"},{"text":"b","x":1}]`, openai.Messages,
		},
		{"a text that speaks of marks", `{"messages":[{"text":"say ,\"cache_control\":{ and ,cache_control\":{}"}]}`, `[{"text":"say ,\"cache_control\":{ and ,cache_control\":{}"}]`, openai.Messages},
		{"chats have none", `{"messages":[{"x":1,"cache_control":{}}]}`, `[{"x":1,"cache_control":{}}]`, openai.Chat},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			r, _ := request.Parse(tc.kind, []byte(tc.body)) // what is refused can be read all the same
			var room [2][]byte
			head, prompt := r.Reading(room[:])
			if got := string(bytes.Join(append(head, prompt), nil)); got != tc.want {
				t.Errorf("%s\nwant %s", got, tc.want)
			}
		})
	}
}
