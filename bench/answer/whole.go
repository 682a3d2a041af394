package answer

import (
	"bytes"
	"strconv"
)

// Whole is one answer as a single JSON object. It belongs to one goroutine.
type Whole struct {
	Body []byte
	tags []int
	kv   int // offset of the hand-over
}

// Handover is the opening of the hand-over in a prefill's answer.
const Handover = `"kv_transfer_params":`

// KV is the hand-over in a prefill's answer that is known to be right: it stands
// at the end. Nil if there is none.
func KV(body []byte) []byte {
	i := bytes.Index(body, []byte(Handover))
	if i < 0 {
		return nil
	}
	return body[i+len(Handover) : len(body)-1]
}

// handover is what a prefill engine tells about the KV cache that it holds:
// the tag and the check sum in remote_request_id let the decode engine see
// that it was given the right one.
func handover(sum uint32) string {
	hex := make([]byte, 8)
	putHex(hex, uint64(sum))
	return `{"do_remote_prefill":true,"do_remote_decode":false,"remote_block_ids":[[101,102,103,104,105,106,107,108]],` +
		`"remote_engine_id":"bench-engine","remote_request_id":"` + KVPrefix + zeroTag + "-" + string(hex) + `","remote_host":"127.0.0.1","remote_port":5600,"tp_size":1}`
}

// KVPrefix is how the name of a KV cache begins; the tag, a dash and the check
// sum follow.
const KVPrefix = "chatcmpl-"

// AppendKVName appends the name of a KV cache as a JSON string.
func AppendKVName(b []byte, tag uint64, sum uint32) []byte {
	const tagAt = len(`"` + KVPrefix)
	n := len(b)
	b = append(b, `"`+KVPrefix+zeroTag+`-00000000"`...)
	putHex(b[n+tagAt:n+tagAt+TagLen], tag)
	putHex(b[n+tagAt+TagLen+1:len(b)-1], uint64(sum))
	return b
}

// NewWhole prepares the answer to a request that does not stream. With
// prefill it offers a hand-over.
func NewWhole(api API, tokens, prompt int, sum uint32, prefill bool) *Whole {
	kv := "null"
	switch {
	case prefill:
		kv = handover(sum)
	case api == Messages: // which has no nulls
		kv = ""
	}
	var text []byte
	for i := range tokens {
		text = append(text, " "+zeroTag+"."...)
		text = append(text, strconv.Itoa(1_000_000 + i)[1:]...)
		if i == 0 {
			text = append(text, proof(prompt, sum)...)
		}
	}
	b := []byte(api.whole(string(text), tokens, prompt, kv))
	return &Whole{Body: b, tags: tagsIn(b), kv: len(b) - 1 - len(kv)}
}

// KV is the hand-over in it, null without one.
func (w *Whole) KV() []byte { return w.Body[w.kv : len(w.Body)-1] }

// SetTag makes it the answer to another request.
func (w *Whole) SetTag(tag uint64) {
	for _, at := range w.tags {
		putHex(w.Body[at:at+TagLen], tag)
	}
}
