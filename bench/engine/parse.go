package engine

import (
	"bytes"
	"errors"
	"fmt"
	"strconv"

	"github.com/pdmesh/pdmesh/bench/answer"
)

// errBody is wrapped by all errors about a request body.
var errBody = errors.New("unsupported request")

// call has the parameters of a request.
type call struct {
	tag    uint64
	params answer.Params
	kv     []byte // begins with the value of remote_request_id; nil without KV transfer params
}

// parse reads a request of the load generator, which a proxy may have changed. It searches
// for keys outside of the prompt instead of parsing JSON, because bodies have up to 64 KiB
// and the prompts of the generator contain no quotes. A request without a prompt of the
// generator, for example a probe, gets tag 0.
func parse(body []byte) (c call, err error) {
	if body = bytes.TrimSpace(body); len(body) < 2 || body[0] != '{' || body[len(body)-1] != '}' {
		return c, fmt.Errorf("%w: not a JSON object", errBody)
	}
	head, tail := body, body[len(body):]
	if i := bytes.Index(body, []byte(answer.Mark)); i >= 0 {
		prompt := body[i+len(answer.Mark):]
		n := bytes.IndexByte(prompt, '"')
		if n < answer.TagLen {
			return c, fmt.Errorf("%w: no tag", errBody)
		}
		head, prompt, tail = body[:i], prompt[:n], prompt[n:]
		if c.tag, err = strconv.ParseUint(string(prompt[:answer.TagLen]), 16, 64); err != nil {
			return c, fmt.Errorf("%w: tag: %w", errBody, err)
		}
		c.params.Prompt, c.params.Sum = n+1, answer.Sum(prompt[answer.TagLen:])
	}
	find := func(key string) []byte {
		if v := value(head, key); v != nil {
			return v
		}
		return value(tail, key)
	}
	is := func(key string) bool { return bytes.HasPrefix(find(key), []byte("true")) }
	const defaultTokens = 16
	c.params.Tokens = defaultTokens
	for _, key := range []string{`"max_tokens"`, `"max_completion_tokens"`} {
		if v := find(key); v != nil {
			end := bytes.IndexAny(v, ",} \n")
			if c.params.Tokens, err = strconv.Atoi(string(v[:max(end, 0)])); err != nil || c.params.Tokens < 1 {
				return c, fmt.Errorf("%w: %s is %.20q", errBody, key, v)
			}
			break
		}
	}
	c.params.Stream, c.params.Usage = is(`"stream"`), is(`"include_usage"`)
	c.params.Prefill = is(`"do_remote_decode"`)
	if is(`"do_remote_prefill"`) {
		if c.kv = find(`"remote_request_id"`); c.kv == nil {
			c.kv = []byte{}
		}
	}
	return c, nil
}

// value returns object from the value of a key on; nil if it does not have the key.
func value(object []byte, key string) []byte {
	for {
		i := bytes.Index(object, []byte(key))
		if i < 0 {
			return nil
		}
		object = bytes.TrimLeft(object[i+len(key):], " \n")
		if len(object) > 0 && object[0] == ':' {
			return bytes.TrimLeft(object[1:], " \n")
		}
	}
}
