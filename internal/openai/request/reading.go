package request

import (
	"bytes"
	"encoding/binary"

	"github.com/zeebo/xxh3"

	"github.com/pdmesh/pdmesh/internal/openai"
	"github.com/pdmesh/pdmesh/internal/openai/jsonscan"
)

// Reading returns the parts that the model reads, as sent and in reading order, for a caller that
// compares prompts. They are the cache salt, the parts that a chat template puts before the messages, and
// the prompt. prompt is the last part, head has all before it, and room is memory for head. The cache
// marks of /v1/messages are left out: they move from turn to turn, although no model sees them. media is
// that of Media: the content of a file is replaced by a hash, since its bytes are not its tokens.
func (r *Request) Reading(buf [][]byte) (head [][]byte, prompt []byte, media bool) {
	head = buf[:0]
	for _, f := range [...]Field{FieldCacheSalt, FieldTools, FieldSystem, FieldInstructions} {
		if raw := r.Raw(f); raw != nil && !jsonscan.IsNull(raw) {
			head, raw = r.unmarked(head, raw)
			head = append(head, raw)
		}
	}
	prompt, media = r.Prompt(), r.Media()
	for media {
		start, end := payload(prompt)
		if end == 0 {
			break
		}
		var before []byte
		head, before = r.unmarked(head, prompt[:start])
		head = append(head, before, binary.BigEndian.AppendUint64(nil, xxh3.Hash(prompt[start:end])))
		prompt = prompt[end:]
	}
	head, prompt = r.unmarked(head, prompt)
	return head, prompt, media
}

// TextBytes returns the length of the body, or, if it has media, of the parts that Reading returns.
func (r *Request) TextBytes() int {
	if !r.Media() {
		return len(r.Body)
	}
	head, prompt, _ := r.Reading(nil)
	n := len(prompt)
	for _, b := range head {
		n += len(b)
	}
	return n
}

// cacheMark is the beginning of a cache mark as Anthropic's clients write it. The search is
// for cacheName, because an underscore is rarer than a comma. A quote inside a string is
// preceded by a backslash, so no text can look like a mark.
const (
	cacheMark = `,"cache_control":{`
	cacheName = `_control":{`
)

// unmarked appends to pieces the parts of raw between its cache marks; rest is the part
// after the last mark.
func (r *Request) unmarked(pieces [][]byte, raw []byte) (all [][]byte, rest []byte) {
	if r.Kind != openai.Messages {
		return pieces, raw
	}
	for from := 0; ; {
		at := bytes.Index(raw[from:], []byte(cacheName))
		if at < 0 {
			return pieces, raw
		}
		end := from + at + len(cacheName)
		from = end
		closed := bytes.IndexByte(raw[end:], '}')
		if closed < 0 || !bytes.HasSuffix(raw[:end], []byte(cacheMark)) {
			continue
		}
		pieces = append(pieces, raw[:end-len(cacheMark)])
		raw, from = raw[end+closed+1:], 0
	}
}
