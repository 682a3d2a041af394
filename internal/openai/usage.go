package openai

import "bytes"

// Cached is what usage.prompt_tokens_details tells about the prefix cache, or
// usage.input_tokens_details on /v1/responses, or usage itself on /v1/messages, as it
// stands there. The zero value means that there is no usage.
type Cached struct {
	// Tokens is the value of cached_tokens, on /v1/messages of
	// cache_read_input_tokens: digits or null.
	Tokens string
	// Created is the value of created_cache_tokens, on /v1/responses of
	// cache_write_tokens, on /v1/messages of cache_creation_input_tokens: digits; "" if
	// there are none.
	Created string
	// Input is the value of input_tokens on /v1/messages, where those of the other two
	// are no part of it: digits; "" elsewhere.
	Input string
}

// CachedTokens finds what an answer tells about the prefix cache. Tokens is "" if
// there is no usage, "0" if the usage tells nothing of it. A null stays a null;
// anything else that is no number counts as no usage, since it is put into the
// client's answer.
func CachedTokens(answer []byte) Cached {
	usage, ok := findUsage(answer, 0)
	if !ok {
		return Cached{}
	}
	if c, ok := messagesCached(answer, usage); ok {
		return c
	}
	m, ok := cachedTokens(answer, usage)
	if !ok {
		return Cached{Tokens: "0"}
	}
	value := answer[m.val:m.end]
	if digits(value, 0) < len(value) && !isNull(value) {
		return Cached{}
	}
	c := Cached{Tokens: string(value)}
	if m, ok := created(answer, usage); ok && digits(answer[m.val:m.end], 0) == m.end-m.val {
		c.Created = string(answer[m.val:m.end])
	}
	return c
}

// SetCachedTokens gives the answer, or the data of an event, with the numbers
// about the prefix cache replaced where they stand. A decode instance counts the
// whole prompt as cached and nothing as put into the cache, since it was computed
// elsewhere: the prefill instance's numbers are the true ones (protocol rule
// R10). Without anything to replace the same bytes come back.
func SetCachedTokens(answer []byte, c Cached) []byte {
	if c.Input != "" {
		return setMessagesCached(answer, c)
	}
	answer = setDetail(answer, cachedTokens, c.Tokens)
	if c.Created != "" {
		answer = setDetail(answer, created, c.Created)
	}
	return answer
}

func setDetail(answer []byte, find func(b []byte, usage int) (member, bool), value string) []byte {
	start := bytes.IndexByte(answer, '{') // behind "data: " in an event
	if start < 0 {
		return answer
	}
	usage, ok := findUsage(answer, start)
	if !ok {
		return answer
	}
	m, ok := find(answer, usage)
	if !ok || isNull(answer[m.val:m.end]) {
		return answer
	}
	return replaced(answer, m.val, m.end, []byte(value))
}

// HasCachedTokens is a cheap test whether there may be something to replace. Of the
// name it looks for the underscore first, which text has seldom and an event's
// other names have a few times: bytes.Contains takes four times as long, and this
// is asked about all that engines answer.
func HasCachedTokens(b []byte) bool {
	const name, front, back, shorter = `"cached_tokens"`, len(`"cached`), len(`_tokens"`), len(`"cache`)
	for i, near := front, 0; i+back <= len(b); i++ {
		n := bytes.IndexByte(b[i:len(b)-back+1], '_')
		if n < 0 {
			return false
		}
		i += n
		if string(b[i-front:i+back]) == name || string(b[i-shorter:i]) == `"cache` && bytes.HasPrefix(b[i:], []byte(`_read_input_tokens"`)) {
			return true
		}
		if n < 8 {
			if near++; near == 64 { // a text of underscores
				return bytes.Contains(b[i-front+1:], []byte(name)) || bytes.Contains(b[i-front+1:], []byte(`"`+cacheRead+`"`))
			}
		}
	}
	return false
}

// findUsage is where the usage of an answer begins: in the answer, in the response that
// the last event of /v1/responses holds, or in the message that the first one of
// /v1/messages holds.
func findUsage(b []byte, start int) (at int, ok bool) {
	usage, ok := findMember(b, start, "usage")
	for _, name := range []string{"response", "message"} {
		if ok {
			break
		}
		if outer, in := findMember(b, start, name); in {
			usage, ok = findMember(b, outer.val, "usage")
		}
	}
	return usage.val, ok && b[usage.val] == '{'
}

// The members of usage on /v1/messages. What was read from the cache and what was put
// into it are no part of the input there.
const (
	cacheRead    = "cache_read_input_tokens"
	cacheCreated = "cache_creation_input_tokens"
	inputTokens  = "input_tokens"
)

// messagesCached reads the usage of /v1/messages; false for any other, and for one that
// tells nothing of the cache.
func messagesCached(b []byte, usage int) (Cached, bool) {
	number := func(name string) string {
		m, ok := findMember(b, usage, name)
		if !ok || digits(b[m.val:m.end], 0) < m.end-m.val {
			return ""
		}
		return string(b[m.val:m.end])
	}
	c := Cached{Tokens: number(cacheRead), Created: number(cacheCreated), Input: number(inputTokens)}
	return c, c.Tokens != "" && c.Input != ""
}

// setMessagesCached is SetCachedTokens for /v1/messages: all numbers or none.
func setMessagesCached(answer []byte, c Cached) []byte {
	start := bytes.IndexByte(answer, '{')
	if start < 0 {
		return answer
	}
	for _, set := range [][2]string{{cacheRead, c.Tokens}, {cacheCreated, c.Created}, {inputTokens, c.Input}} {
		usage, ok := findUsage(answer, start)
		if !ok {
			return answer
		}
		if _, told := messagesCached(answer, usage); !told {
			return answer
		}
		if m, ok := findMember(answer, usage, set[0]); ok && set[1] != "" {
			answer = replaced(answer, m.val, m.end, []byte(set[1]))
		}
	}
	return answer
}

func cachedTokens(b []byte, usage int) (member, bool) { return detail(b, usage, "cached_tokens") }

func created(b []byte, usage int) (member, bool) {
	if m, ok := detail(b, usage, "created_cache_tokens"); ok {
		return m, true
	}
	return detail(b, usage, "cache_write_tokens")
}

// detail finds a member of what a usage tells of the prompt.
func detail(b []byte, usage int, name string) (member, bool) {
	details, ok := findMember(b, usage, "prompt_tokens_details")
	if !ok {
		details, ok = findMember(b, usage, "input_tokens_details")
	}
	if !ok || b[details.val] != '{' {
		return member{}, false
	}
	return findMember(b, details.val, name)
}

// findMember finds a member of the object that begins at i; of duplicates the last.
func findMember(b []byte, i int, name string) (found member, ok bool) {
	s := scanner{b: b}
	if i = s.space(i); i >= len(b) || b[i] != '{' {
		return member{}, false
	}
	_, err := s.members(i, 0, func(m member) error {
		if string(unquote(b[m.key:m.keyEnd])) == name {
			found, ok = m, true
		}
		return nil
	})
	return found, ok && err == nil
}
