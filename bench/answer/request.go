package answer

import (
	"fmt"
	"hash/crc32"
	"strconv"
)

// Model is the name that the engines serve and the requests ask for.
const Model = "bench/model"

// Shape is what all requests of a workload have in common.
type Shape struct {
	// Prompt is the length of the prompt in bytes of its JSON spelling, at
	// least TagLen+2.
	Prompt int
	// Tokens is max_tokens, and as many come.
	Tokens int
	// Stream asks for an event stream with usage at its end.
	Stream bool
	API    API
}

// TagLen is the length of a tag in hexadecimal digits.
const TagLen = 16

// Mark opens the prompt, the tag follows.
const Mark = `"#`

// Path is where chats go.
const Path = "/v1/chat/completions"

// Ask is the member of a first leg's body that asks for a hand-over, as the NIXL
// connector wants it, with its comma.
const Ask = `"kv_transfer_params":{"do_remote_decode":true,"do_remote_prefill":false,"remote_engine_id":null,"remote_block_ids":null,"remote_host":null,"remote_port":null},`

// MaxTokens opens what the legs do not have in common: behind the prompt, the
// number of tokens stands first, and all that asks for a stream follows it.
const MaxTokens = `,"max_tokens":`

// castagnoli has instructions of its own on the usual processors.
func castagnoli() *crc32.Table { return crc32.MakeTable(crc32.Castagnoli) }

// Sum is the check sum of the prompt behind its tag.
func Sum(rest []byte) uint32 { return crc32.Checksum(rest, castagnoli()) }

// Request is the body of a chat completion. It is made once and changed for
// each request by SetTag; it belongs to one goroutine.
type Request struct {
	Body  []byte
	Shape Shape
	Sum   uint32 // of the prompt behind the tag
	tag   int    // offset of the tag
}

// NewRequest makes a body. With prefill it is the first leg's as a proxy would
// make it for the NIXL connector: one token, no stream, a hand-over asked for.
func NewRequest(s Shape, prefill bool) *Request {
	r := &Request{Shape: s}
	b := make([]byte, 0, s.Prompt+512)
	b = append(b, '{')
	if prefill {
		b = append(b, Ask...)
	}
	b = append(b, `"model":"`+Model+`",`+s.API.input()+Mark...)
	r.tag = len(b)
	b = append(b, "0000000000000000"...)
	rest := len(b)
	b = appendProse(b, s.Prompt-TagLen-1)
	r.Sum = Sum(b[rest:])
	tokens, stream := s.Tokens, s.Stream
	if prefill {
		tokens, stream = 1, false
	}
	b = append(b, `"}],"temperature":0`+s.API.limit()...)
	b = strconv.AppendInt(b, int64(tokens), 10)
	if stream {
		b = append(b, `,"stream":true`...)
		if s.API == Chat {
			b = append(b, `,"stream_options":{"include_usage":true}`...)
		}
	}
	r.Body = append(b, '}')
	return r
}

// SetTag makes the body that of another request.
func (r *Request) SetTag(tag uint64) { putHex(r.Body[r.tag:r.tag+TagLen], tag) }

// Len is the length of the prompt in bytes, as engines tell it.
func (r *Request) Len() int { return max(r.Shape.Prompt, TagLen+1) }

// appendProse appends n bytes that look like a prompt: words, and every line
// ends in an escape, as in real prompts.
func appendProse(b []byte, n int) []byte {
	const line = ` the quick brown fox jumps over 13 lazy dogs, and none of them looks up;\n`
	for n > 0 {
		k := min(n, len(line))
		if k == len(line)-1 {
			k-- // never half an escape
		}
		b = append(b, line[:k]...)
		n -= k
		if k == len(line)-2 && n == 1 {
			b = append(b, '.')
			n--
		}
	}
	return b
}

func putHex(dst []byte, v uint64) {
	const digits = "0123456789abcdef"
	for i := len(dst) - 1; i >= 0; i-- {
		dst[i] = digits[v&15]
		v >>= 4
	}
}

// ParseTag reads what SetTag wrote.
func ParseTag(b []byte) (uint64, error) {
	if len(b) < TagLen {
		return 0, fmt.Errorf("a tag has %d digits", TagLen)
	}
	var v uint64
	for _, c := range b[:TagLen] {
		switch {
		case '0' <= c && c <= '9':
			c -= '0'
		case 'a' <= c && c <= 'f':
			c -= 'a' - 10
		default:
			return 0, fmt.Errorf("%q is no tag", b[:TagLen])
		}
		v = v<<4 | uint64(c)
	}
	return v, nil
}
