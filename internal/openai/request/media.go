package request

import (
	"bytes"

	"github.com/pdmesh/pdmesh/internal/openai"
	"github.com/pdmesh/pdmesh/internal/openai/jsonscan"
)

// Media reports whether the messages have parts other than text: images, video, sound,
// files, or embeddings.
func (r *Request) Media() bool {
	if r.Kind == openai.Completion || r.Kind == openai.Other || !r.nested { // parts are in an array of a message
		return false
	}
	b := r.Prompt()
	if len(b) == 0 || b[0] != '[' {
		return false
	}
	found := false
	visit := func(m jsonscan.Member) error {
		if name := string(jsonscan.Unquote(b[m.Key:m.KeyEnd])); name == "content" || name == "output" { // of a function call
			found = found || mediaIn(b[m.Value:m.End], false)
		}
		return nil
	}
	s := jsonscan.Scanner{Text: b}
	for i := s.Space(1); i < len(b) && b[i] != ']' && !found; {
		var end int
		var err error
		if b[i] == '{' {
			end, err = s.Members(i, 0, visit)
		} else {
			end, err = s.Value(i, 0)
		}
		if err != nil {
			return false
		}
		if i = s.Space(end); i < len(b) && b[i] == ',' {
			i = s.Space(i + 1)
		}
	}
	return found
}

// mediaIn reports whether an array has such a part, itself or in a tool's result; results
// are not nested. vLLM determines the type of a chat's part without one from its members.
func mediaIn(array []byte, result bool) bool {
	found := false
	jsonscan.EachObject(array, func(part []byte) {
		_ = jsonscan.EachMember(part, 0, func(key []byte, m jsonscan.Member) { // was scanned before
			value := part[m.Value:m.End]
			switch name := string(key); name {
			case "type":
				found = found || value[0] == '"' && isMedia(string(jsonscan.Unquote(value)))
			case "content":
				found = found || !result && mediaIn(value, true)
			default:
				found = found || isMedia(name) && !jsonscan.IsNull(value)
			}
		})
	})
	return found
}

// isMedia reports whether a part of this type is not text.
func isMedia(kind string) bool {
	switch kind {
	case "image_url", "video_url", "audio_url", "input_audio", "image_pil", "input_image", "input_video", "input_file",
		"image", "document", "file", "image_embeds", "video_embeds", "audio_embeds", "prompt_embeds":
		return true
	}
	return false
}

// payload returns the start and end of the first string with the content of a file, with
// its quotes; 0 if there is none. Such a string is long and in base64, perhaps within a
// data: URL; some clients escape its slashes.
func payload(b []byte) (start, end int) {
	const short, judged, urlHead = 256, 128, 100
	for s := (jsonscan.Scanner{Text: b}); ; {
		next := bytes.IndexByte(b[end:], '"')
		if next < 0 {
			return 0, 0
		}
		start = end + next
		var err error
		if end, err = s.Value(start, 0); err != nil {
			return 0, 0
		}
		if end-start < short {
			continue
		}
		text := b[start+1 : end-1]
		if bytes.HasPrefix(text, []byte("data:")) {
			text = text[bytes.IndexByte(text[:urlHead], ',')+1:]
		}
		if bytes.IndexFunc(text[:judged], notBase64) < 0 {
			return start, end
		}
	}
}

// notBase64 reports whether a character is neither in base64 nor in an escape of it.
func notBase64(c rune) bool {
	return (c < '0' || c > '9') && (c|0x20 < 'a' || c|0x20 > 'z') && !bytes.ContainsRune([]byte(`+/=-_\`), c)
}
