package answer

import (
	"fmt"
	"strconv"
)

// The parts of a chunk as vLLM spells it.
const (
	chunkOpen  = `data: {"id":"chatcmpl-`
	chunkMiddl = `","object":"chat.completion.chunk","created":1700000000,"model":"` + Model + `","choices":[`
	zeroTag    = "0000000000000000"
)

// Stream is one answer as an event stream. Its buffers are used again for
// every event and every request; it belongs to one goroutine.
type Stream struct {
	tokens int
	frames [kinds]frame
}

// The kinds of events, in their order.
const (
	role = iota
	first
	middle
	last
	usage
	done
	kinds
)

// frame is one event inside its HTTP chunk.
type frame struct {
	bytes      []byte
	from, to   int // the event in bytes
	tags       []int
	seq, width int
}

// NewStream prepares the answer to a request of the given shape; prompt is the
// prompt's length and sum its check sum.
func NewStream(api API, tokens, prompt int, sum uint32, withUsage bool) *Stream {
	s := &Stream{tokens: tokens}
	for kind, event := range api.events(tokens, prompt, sum, withUsage) {
		if event != "" {
			s.frames[kind] = newFrame(event, kind == first || kind == middle || kind == last)
		}
	}
	return s
}

// chatEvents are the events of a chat.
func chatEvents(tokens, prompt int, sum uint32, withUsage bool) (events [kinds]string) {
	open := chunkOpen + zeroTag + chunkMiddl
	delta := func(content, finish, more string) string {
		return open + `{"index":0,"delta":{"content":"` + content + `"},"logprobs":null,"finish_reason":` + finish + more + `,"token_ids":null}]}` + "\n\n"
	}
	const length = `,"stop_reason":null`
	events[role] = open + `{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}],"prompt_token_ids":null}` + "\n\n"
	firstText := " " + zeroTag + ".000000" + proof(prompt, sum)
	text := " " + zeroTag + ".000000"
	if tokens == 1 {
		events[first] = delta(firstText, `"length"`, length)
	} else {
		events[first] = delta(firstText, "null", "")
	}
	events[middle], events[last] = delta(text, "null", ""), delta(text, `"length"`, length)
	if withUsage {
		events[usage] = open + `],"usage":` + counts(prompt, tokens) + "}\n\n"
	}
	events[done] = "data: [DONE]\n\n"
	return events
}

// proof is what the first token says about the prompt.
func proof(prompt int, sum uint32) string {
	return fmt.Sprintf(".%d.%08x", prompt, sum)
}

// counts is the usage object; a token of the prompt is four bytes.
func counts(prompt, tokens int) string {
	p := (prompt + 3) / 4
	return fmt.Sprintf(`{"prompt_tokens":%d,"total_tokens":%d,"completion_tokens":%d,"prompt_tokens_details":null}`, p, p+tokens, tokens)
}

// newFrame wraps an event into its HTTP chunk and notes where tags stand. In
// content events the number of the token follows the last tag.
func newFrame(event string, content bool) frame {
	head := strconv.FormatInt(int64(len(event)), 16) + "\r\n"
	f := frame{bytes: []byte(head + event + "\r\n"), from: len(head), to: len(head) + len(event)}
	f.tags = tagsIn(f.bytes)
	if content {
		f.seq, f.width = f.tags[len(f.tags)-1]+TagLen+1, 6
	}
	return f
}

func tagsIn(b []byte) (offsets []int) {
	for i := 0; i+TagLen <= len(b); i++ {
		if string(b[i:i+TagLen]) == zeroTag {
			offsets = append(offsets, i)
			i += TagLen - 1
		}
	}
	return offsets
}

// SetTag makes it the answer to another request.
func (s *Stream) SetTag(tag uint64) {
	for k := range s.frames {
		f := &s.frames[k]
		for _, at := range f.tags {
			putHex(f.bytes[at:at+TagLen], tag)
		}
	}
}

// Events is the number of events, [DONE] included.
func (s *Stream) Events() int {
	n := 1 + s.tokens + 1
	if s.frames[usage].bytes != nil {
		n++
	}
	return n
}

// IsToken reports whether event i brings a token.
func (s *Stream) IsToken(i int) bool { return i >= 1 && i <= s.tokens }

// Event is event i. It is valid until the next call.
func (s *Stream) Event(i int) []byte {
	f := s.frame(i)
	return f.bytes[f.from:f.to]
}

// Chunk is event i inside its HTTP chunk. It is valid until the next call.
func (s *Stream) Chunk(i int) []byte { return s.frame(i).bytes }

func (s *Stream) frame(i int) *frame {
	switch {
	case i == 0:
		return &s.frames[role]
	case i == 1:
		return &s.frames[first]
	case i <= s.tokens:
		f := &s.frames[middle]
		if i == s.tokens {
			f = &s.frames[last]
		}
		n := i - 1
		for at := f.seq + f.width - 1; at >= f.seq; at-- {
			f.bytes[at] = byte('0' + n%10)
			n /= 10
		}
		return f
	case i == s.tokens+1 && s.frames[usage].bytes != nil:
		return &s.frames[usage]
	default:
		return &s.frames[done]
	}
}
