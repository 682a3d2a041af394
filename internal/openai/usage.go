package openai

import "bytes"

// Cached is what usage.prompt_tokens_details tells about the prefix cache, or
// usage.input_tokens_details on /v1/responses, as it stands there. The zero value means
// that there is no usage.
type Cached struct {
	// Tokens is the value of cached_tokens: digits or null.
	Tokens string
	// Created is the value of created_cache_tokens, on /v1/responses of
	// cache_write_tokens: digits; "" if there are none.
	Created string
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
	out := make([]byte, 0, len(answer)+len(value))
	out = append(out, answer[:m.val]...)
	out = append(out, value...)
	return append(out, answer[m.end:]...)
}

// HasCachedTokens is a cheap test whether there may be something to replace. Of the
// name it looks for the underscore first, which text has seldom and an event's
// other names have a few times: bytes.Contains takes four times as long, and this
// is asked about all that engines answer.
func HasCachedTokens(b []byte) bool {
	const name, front, back = `"cached_tokens"`, len(`"cached`), len(`_tokens"`)
	for i, near := front, 0; i+back <= len(b); i++ {
		n := bytes.IndexByte(b[i:len(b)-back+1], '_')
		if n < 0 {
			return false
		}
		i += n
		if string(b[i-front:i+back]) == name {
			return true
		}
		if n < 8 {
			if near++; near == 64 { // a text of underscores
				return bytes.Contains(b[i-front+1:], []byte(name))
			}
		}
	}
	return false
}

// findUsage is where the usage of an answer begins: in the answer, or in the response
// that the last event of /v1/responses holds.
func findUsage(b []byte, start int) (at int, ok bool) {
	usage, ok := findMember(b, start, "usage")
	if !ok {
		response, in := findMember(b, start, "response")
		if !in {
			return 0, false
		}
		usage, ok = findMember(b, response.val, "usage")
	}
	return usage.val, ok && b[usage.val] == '{'
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
