package engine

import (
	"bytes"
	"errors"
	"fmt"

	"github.com/pdmesh/pdmesh/bench/answer"
)

// errBody is wrapped by the complaints about a request's JSON.
var errBody = errors.New("not a request this engine understands")

// call is what an engine must know of a request.
type call struct {
	api           answer.API
	tokens        int
	stream, usage bool
	prefill       bool // a hand-over is asked for
	tag           uint64
	prompt        int // bytes of the prompt
	sum           uint32
	kv            []byte // remote_request_id of a hand-over that is given
}

// parse reads the top level of a JSON object, as little of it as possible.
func parse(body []byte) (call, error) {
	c := call{tokens: 16}
	i := skipSpace(body, 0)
	if i >= len(body) || body[i] != '{' {
		return c, fmt.Errorf("%w: it is no JSON object", errBody)
	}
	i++
	for {
		i = skipSpace(body, i)
		if i < len(body) && body[i] == '}' {
			return c, nil
		}
		keyEnd, err := skipValue(body, i)
		if err != nil || body[i] != '"' {
			return c, fmt.Errorf("%w: no key at byte %d", errBody, i)
		}
		key := body[i+1 : keyEnd-1]
		if i = skipSpace(body, keyEnd); i >= len(body) || body[i] != ':' {
			return c, fmt.Errorf("%w: no value at byte %d", errBody, i)
		}
		i = skipSpace(body, i+1)
		end, err := skipValue(body, i)
		if err != nil {
			return c, err
		}
		if err := c.field(key, body[i:end]); err != nil {
			return c, err
		}
		if i = skipSpace(body, end); i < len(body) && body[i] == ',' {
			i++
		} else if i >= len(body) || body[i] != '}' {
			return c, fmt.Errorf("%w: neither comma nor end at byte %d", errBody, i)
		}
	}
}

func (c *call) field(key, value []byte) error {
	switch string(key) {
	case "max_tokens", "max_completion_tokens", "max_output_tokens":
		n := 0
		for _, d := range value {
			if d < '0' || d > '9' || n > 1e8 {
				return fmt.Errorf("%w: %s is %.20q", errBody, key, value)
			}
			n = n*10 + int(d-'0')
		}
		if n < 1 {
			return fmt.Errorf("%w: %s is %.20q", errBody, key, value)
		}
		c.tokens = n
	case "stream":
		c.stream = string(value) == "true"
	case "stream_options":
		v := find(value, `"include_usage"`)
		c.usage = bytes.HasPrefix(v, []byte("true"))
	case "messages", "prompt", "input":
		return c.text(value)
	case "kv_transfer_params":
		if v := find(value, `"do_remote_decode"`); bytes.HasPrefix(v, []byte("true")) {
			c.prefill = true
		}
		if v := find(value, `"do_remote_prefill"`); bytes.HasPrefix(v, []byte("true")) {
			id := find(value, `"remote_request_id"`)
			if end, err := skipValue(id, 0); err == nil {
				c.kv = id[:end]
			} else {
				c.kv = []byte("none")
			}
		}
	}
	return nil
}

// text reads the prompt. One without a mark (a probe's, a curious person's) is
// taken with tag 0.
func (c *call) text(value []byte) error {
	i := bytes.Index(value, []byte(answer.Mark))
	if i < 0 {
		return nil
	}
	end, err := skipValue(value, i)
	if err != nil {
		return err
	}
	content := value[i+len(answer.Mark) : end-1]
	if c.tag, err = answer.ParseTag(content); err != nil {
		return fmt.Errorf("%w: %w", errBody, err)
	}
	rest := content[answer.TagLen:]
	c.prompt, c.sum = len(rest)+answer.TagLen+1, answer.Sum(rest)
	return nil
}

// find returns the value behind a quoted key, with what follows it.
func find(object []byte, key string) []byte {
	i := bytes.Index(object, []byte(key))
	if i < 0 {
		return nil
	}
	i = skipSpace(object, i+len(key))
	if i >= len(object) || object[i] != ':' {
		return nil
	}
	return object[skipSpace(object, i+1):]
}

func skipSpace(b []byte, i int) int {
	for i < len(b) && (b[i] == ' ' || b[i] == '\n' || b[i] == '\t' || b[i] == '\r') {
		i++
	}
	return i
}

// skipValue returns the offset behind the value at i.
func skipValue(b []byte, i int) (int, error) {
	depth := 0
	for i < len(b) {
		switch b[i] {
		case '"':
			end, err := skipString(b, i)
			if err != nil {
				return 0, err
			}
			if i = end; depth == 0 {
				return i, nil
			}
			continue
		case '{', '[':
			depth++
		case '}', ']':
			if depth--; depth < 0 {
				return i, nil // the end of a number before it
			}
			if depth == 0 {
				return i + 1, nil
			}
		case ',', ' ', '\n', '\r', '\t':
			if depth == 0 {
				return i, nil
			}
		}
		i++
	}
	return 0, fmt.Errorf("%w: it ends within a value", errBody)
}

// skipString returns the offset behind the string that opens at i.
func skipString(b []byte, i int) (int, error) {
	i++
	for {
		n := bytes.IndexByte(b[i:], '"')
		if n < 0 {
			return 0, fmt.Errorf("%w: it ends within a string", errBody)
		}
		end := i + n
		back := end
		for back > i && b[back-1] == '\\' {
			back--
		}
		i = end + 1
		if (end-back)%2 == 0 {
			return i, nil
		}
	}
}
