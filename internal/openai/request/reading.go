package request

import (
	"bytes"
	"encoding/binary"

	"github.com/zeebo/xxh3"

	"github.com/pdmesh/pdmesh/internal/openai"
	"github.com/pdmesh/pdmesh/internal/openai/jsonscan"
)

// Reading returns what the model reads, as sent and in the order of reading, for a caller that
// compares prompts: the salt of the cache, what a chat's template puts before the
// messages, and what was asked. The last of it is prompt, all before it head. room is
// memory for head. What moves from turn to turn though no model sees it is left out:
// the marks of /v1/messages behind what a client wants to have cached. media is that of
// Media: the content of a picture is replaced by a hash, since its bytes are not its tokens.
func (r *Request) Reading(room [][]byte) (head [][]byte, prompt []byte, media bool) {
	head = room[:0]
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

// TextBytes returns the length of the body, or of what Reading leaves of it if it has media.
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

// unmarked adds to pieces all of raw but its marks and what follows the last, which
// is rest.
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
