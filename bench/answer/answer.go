// Package answer defines the requests of the benchmark and their correct responses. The
// load generator and the engine compute both from the same parameters, so the generator
// can compare every byte of a response:
//
//	"#0123456789abcdef the quick ..."             a prompt begins with the tag of its request
//	" 0123456789abcdef.000000.<length>.<sum>"     first token: also length and CRC-32C of the prompt
//	" 0123456789abcdef.000001"                    any token: tag and number
//
// A token that is lost, repeated, reordered or from another response differs in its first
// bytes. A prompt that was changed on the way to the engine changes the first token.
package answer

import (
	"bytes"
	"errors"
	"fmt"
	"hash/crc32"
	"strconv"
)

// Model is the name of the model that the engines serve.
const Model = "bench/model"

// Path is the path of all requests.
const Path = "/v1/chat/completions"

// Mark opens a prompt; the tag follows.
const Mark = `"#`

// TagLen is the length of a tag in hexadecimal digits.
const TagLen = 16

const zeroTag = "0000000000000000"

// Shape has the common properties of all requests of a workload.
type Shape struct {
	Prompt int  // length of the prompt in bytes of its JSON encoding; at least TagLen+2
	Tokens int  // max_tokens; responses have exactly this number of tokens
	Stream bool // a stream that ends with usage
}

// Request is a request body. NewRequest builds it once, and SetTag makes it the body of
// another request. It is not safe for concurrent use.
type Request struct {
	Body []byte
	Sum  uint32 // Sum of the prompt after its tag
	tag  int    // offset of the tag
}

// NewRequest returns a request of shape s with tag 0.
func NewRequest(s Shape) *Request {
	b := []byte(`{"model":"` + Model + `","messages":[{"role":"user","content":` + Mark)
	r := &Request{tag: len(b)}
	b = append(b, zeroTag...)
	const text = ` the quick brown fox jumps over 13 lazy dogs, and none of them minds;\n`
	rest := len(b)
	for n := s.Prompt - TagLen - 1; n > 0; n = s.Prompt - TagLen - 1 - (len(b) - rest) {
		if n < len(text) {
			b = append(b, bytes.Repeat([]byte{'.'}, n)...)
		} else {
			b = append(b, text...)
		}
	}
	r.Sum = Sum(b[rest:])
	b = strconv.AppendInt(append(b, `"}],"temperature":0,"max_tokens":`...), int64(s.Tokens), 10)
	if s.Stream {
		b = append(b, `,"stream":true,"stream_options":{"include_usage":true}`...)
	}
	r.Body = append(b, '}')
	return r
}

// SetTag changes the tag.
func (r *Request) SetTag(tag uint64) { putHex(r.Body[r.tag:r.tag+TagLen], tag) }

// Sum returns the checksum of a prompt, which begins after its tag.
func Sum(rest []byte) uint32 { return crc32.Checksum(rest, crc32.MakeTable(crc32.Castagnoli)) }

// Params are the parameters of a request that determine its response, apart from the tag.
type Params struct {
	Tokens, Prompt int
	Sum            uint32
	Stream, Usage  bool
	Prefill        bool // the request asks for KV transfer params
}

// Params returns the parameters of the requests of a shape; sum is Request.Sum.
func (s Shape) Params(sum uint32) Params {
	return Params{Tokens: s.Tokens, Prompt: max(s.Prompt, TagLen+1), Sum: sum, Stream: s.Stream, Usage: s.Stream}
}

// The kinds of parts, in their order in a stream. A whole response has one part.
const (
	role = iota
	first
	middle
	last
	usage
	done
	kinds
)

// Response is one response, as the parts in which an engine sends it: the events of a
// stream, or one JSON object. Its buffers are reused for every part and every tag. It is
// not safe for concurrent use.
type Response struct {
	params Params
	parts  [kinds]part
}

// part is one kind of part, as an HTTP chunk.
type part struct {
	chunk    []byte
	from, to int   // the payload in chunk
	tags     []int // offsets of the tag
}

// New returns the response to a request with parameters p and tag 0.
func New(p Params) *Response {
	r := &Response{params: p}
	text := " " + zeroTag + ".000000"
	firstText := fmt.Sprintf("%s.%d.%08x", text, p.Prompt, p.Sum)
	if !p.Stream {
		content := []byte(firstText)
		for i := 1; i < p.Tokens; i++ {
			content = fmt.Appendf(content, " %s.%06d", zeroTag, i)
		}
		kv := "null"
		if p.Prefill {
			kv = `{"do_remote_prefill":true,"do_remote_decode":false,"remote_block_ids":[[101,102,103,104,105,106,107,108]],"remote_engine_id":"bench-engine",` +
				`"remote_request_id":` + string(AppendKVName(nil, 0, p.Sum)) + `,"remote_host":"127.0.0.1","remote_port":5600,"tp_size":1}`
		}
		r.set(role, `{"id":"chatcmpl-`+zeroTag+`","object":"chat.completion","created":1700000000,"model":"`+Model+
			`","choices":[{"index":0,"message":{"role":"assistant","content":"`+string(content)+
			`","refusal":null,"annotations":null,"audio":null,"function_call":null,"reasoning":null},"logprobs":null,"finish_reason":"length","stop_reason":null,"token_ids":null}],`+
			`"service_tier":null,"system_fingerprint":null,"usage":`+p.counts()+`,"prompt_logprobs":null,"prompt_token_ids":null,"kv_transfer_params":`+kv+`}`)
		return r
	}
	const open = `data: {"id":"chatcmpl-` + zeroTag + `","object":"chat.completion.chunk","created":1700000000,"model":"` + Model + `","choices":[`
	delta := func(content, finish string) string {
		return open + `{"index":0,"delta":{"content":"` + content + `"},"logprobs":null,"finish_reason":` + finish + `,"token_ids":null}]}` + "\n\n"
	}
	const more, length = "null", `"length","stop_reason":null`
	r.set(role, open+`{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}],"prompt_token_ids":null}`+"\n\n")
	if p.Tokens == 1 {
		r.set(first, delta(firstText, length))
	} else {
		r.set(first, delta(firstText, more))
	}
	r.set(middle, delta(text, more))
	r.set(last, delta(text, length))
	if p.Usage {
		r.set(usage, open+`],"usage":`+p.counts()+"}\n\n")
	}
	r.set(done, "data: [DONE]\n\n")
	return r
}

// counts returns the usage object; four bytes of a prompt count as one token.
func (p Params) counts() string {
	prompt := (p.Prompt + 3) / 4
	return fmt.Sprintf(`{"prompt_tokens":%d,"total_tokens":%d,"completion_tokens":%d,"prompt_tokens_details":null}`, prompt, prompt+p.Tokens, p.Tokens)
}

// set stores a part, and finds the tags in it.
func (r *Response) set(kind int, payload string) {
	head := strconv.FormatInt(int64(len(payload)), 16) + "\r\n"
	p := part{chunk: []byte(head + payload + "\r\n"), from: len(head), to: len(head) + len(payload)}
	for i := 0; ; {
		n := bytes.Index(p.chunk[i:], []byte(zeroTag))
		if n < 0 {
			break
		}
		p.tags = append(p.tags, i+n)
		i += n + TagLen
	}
	r.parts[kind] = p
}

// Params returns the parameters from which New made r.
func (r *Response) Params() Params { return r.params }

// SetTag makes r the response to the request with this tag.
func (r *Response) SetTag(tag uint64) {
	for k := range r.parts {
		for _, at := range r.parts[k].tags {
			putHex(r.parts[k].chunk[at:at+TagLen], tag)
		}
	}
}

// Len returns the number of parts.
func (r *Response) Len() int {
	switch {
	case !r.params.Stream:
		return 1
	case r.params.Usage:
		return r.params.Tokens + 3
	}
	return r.params.Tokens + 2
}

// IsToken reports whether part i is an event with a token.
func (r *Response) IsToken(i int) bool { return r.params.Stream && i >= 1 && i <= r.params.Tokens }

// Part returns part i. It is valid until the next call of a method of r.
func (r *Response) Part(i int) []byte {
	p := r.at(i)
	return p.chunk[p.from:p.to]
}

// Chunk returns part i as an HTTP chunk. It is valid until the next call of a method of r.
func (r *Response) Chunk(i int) []byte { return r.at(i).chunk }

func (r *Response) at(i int) *part {
	switch n := r.params.Tokens; {
	case i == 0:
		return &r.parts[role]
	case i == 1:
		return &r.parts[first]
	case i <= n:
		p := &r.parts[middle]
		if i == n {
			p = &r.parts[last]
		}
		const digits = 6
		number := p.chunk[p.tags[1]+TagLen+1:][:digits] // tags[0] is in the id
		for at, rest := digits-1, i-1; at >= 0; at, rest = at-1, rest/10 {
			number[at] = byte('0' + rest%10)
		}
		return p
	case i == n+1 && r.params.Usage:
		return &r.parts[usage]
	}
	return &r.parts[done]
}

// AppendKVName appends the remote_request_id of the KV cache of a prompt, as a JSON string.
func AppendKVName(b []byte, tag uint64, sum uint32) []byte {
	b = append(append(b, `"chatcmpl-`...), zeroTag...)
	putHex(b[len(b)-TagLen:], tag)
	b = append(b, `-00000000"`...)
	putHex(b[len(b)-9:len(b)-1], uint64(sum))
	return b
}

func putHex(dst []byte, v uint64) {
	for i := len(dst) - 1; i >= 0; i-- {
		dst[i] = "0123456789abcdef"[v&15]
		v >>= 4
	}
}

// ErrWrong is wrapped by every error about a response that differs from the correct one,
// or that is too short.
var ErrWrong = errors.New("wrong response")

// Check compares a response with the correct one while it arrives, in pieces of any size.
// It implements io.Writer. It is not safe for concurrent use.
type Check struct {
	want    *Response
	part    []byte
	i, at   int    // part, and offset in it
	onToken func() // called after each event with a token
}

// NewCheck returns a check that owns want.
func NewCheck(want *Response, onToken func()) *Check { return &Check{want: want, onToken: onToken} }

// Begin expects the response to the request with this tag.
func (c *Check) Begin(tag uint64) {
	c.want.SetTag(tag)
	c.i, c.at, c.part = 0, 0, c.want.Part(0)
}

// Write compares the next piece.
func (c *Check) Write(b []byte) (int, error) {
	for p := b; len(p) > 0; {
		if c.i == c.want.Len() {
			return 0, fmt.Errorf("%w: %.80q after the end", ErrWrong, p)
		}
		n := min(len(p), len(c.part)-c.at)
		if !bytes.Equal(p[:n], c.part[c.at:c.at+n]) {
			return 0, fmt.Errorf("%w: part %d of %d, byte %d: got %.160q, want %.160q", ErrWrong, c.i, c.want.Len(), c.at, p[:n], c.part[c.at:c.at+n])
		}
		c.at, p = c.at+n, p[n:]
		if c.at < len(c.part) {
			break
		}
		if c.want.IsToken(c.i) {
			c.onToken()
		}
		if c.i, c.at = c.i+1, 0; c.i < c.want.Len() {
			c.part = c.want.Part(c.i)
		}
	}
	return len(b), nil
}

// End returns an error if the response is incomplete.
func (c *Check) End() error {
	if c.i < c.want.Len() {
		return fmt.Errorf("%w: it ended in part %d of %d", ErrWrong, c.i, c.want.Len())
	}
	return nil
}
