package request_test

import (
	"bytes"
	"encoding/base64"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"

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
			r, _ := request.Parse(tc.kind, []byte(tc.body)) // a refused request can be read as well
			var room [2][]byte
			head, prompt, _ := r.Reading(room[:])
			assert.Equal(t, tc.want, string(bytes.Join(append(head, prompt), nil)))
		})
	}
}

// An image counts as a few bytes, and two requests have the same reading only if their images are the same.
func TestReading_Media(t *testing.T) {
	t.Parallel()
	rng := rand.NewChaCha8([32]byte{1})
	picture := func() string {
		raw := make([]byte, 1<<20)
		_, _ = rng.Read(raw) // it never returns an error
		return base64.StdEncoding.EncodeToString(raw)
	}
	first, second := picture(), picture()
	text := strings.Repeat("many words ", 100)
	for _, tc := range []struct {
		name, before, after string
		kind                openai.Kind
	}{
		{"a chat", `{"messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"data:image/png;base64,`, `"}}]}]}`, openai.Chat},
		{"a slash that is escaped", `{"messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"data:image\/png;base64,\/`, `"}}]}]}`, openai.Chat},
		{"audio", `{"messages":[{"role":"user","content":[{"type":"input_audio","input_audio":{"data":"`, `","format":"wav"}}]}]}`, openai.Chat},
		{"a message", `{"messages":[{"role":"user","content":[{"type":"text","text":"a","cache_control":{}},{"type":"image","source":{"type":"base64","data":"`, `"}}]}]}`, openai.Messages},
		{"what a tool has returned", `{"messages":[{"role":"user","content":[{"type":"tool_result","content":[{"type":"image","source":{"data":"`, `"},"cache_control":{}}]}]}]}`, openai.Messages},
		{"a response", `{"input":[{"role":"user","content":[{"type":"input_image","image_url":"data:image/jpeg;base64,`, `"}]}]}`, openai.Responses},
		{"a file", `{"input":[{"role":"user","content":[{"type":"input_file","file_data":"`, `"}]}]}`, openai.Responses},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			read := func(picture, text string) string {
				after := strings.Replace(tc.after, `}]`, `},{"type":"text","text":"`+text+`"}]`, 1)
				r, _ := request.Parse(tc.kind, []byte(tc.before+picture+after))
				var room [2][]byte
				head, prompt, media := r.Reading(room[:])
				assert.True(t, media, "no media")
				return string(bytes.Join(append(head, prompt), nil))
			}
			got := read(first, text)
			assert.True(t, len(got) <= 4096 && strings.Contains(got, text) && !strings.Contains(got, "cache_control"),
				"%d bytes: %.2000s", len(got), got)
			assert.True(t, read(strings.Clone(first), text) == got && read(second, text) != got,
				"equal pictures differ, or others are equal")
		})
	}
}
