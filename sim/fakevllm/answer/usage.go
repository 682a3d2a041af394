package answer

import "strconv"

// AppendUsage renders a usage object. Chats tell
// what was put into the cache, other completions do not. full is for whole
// answers, which have members that are null, too.
func (j *Reply) AppendUsage(b []byte, prompt, completion int, final, full bool) []byte {
	b = append(b, `{"prompt_tokens":`...)
	b = strconv.AppendInt(b, int64(prompt), 10)
	b = append(b, `,"total_tokens":`...)
	b = strconv.AppendInt(b, int64(prompt+completion), 10)
	b = append(b, `,"completion_tokens":`...)
	b = strconv.AppendInt(b, int64(completion), 10)
	switch {
	case final && j.Details:
		b = append(b, `,"prompt_tokens_details":{"cached_tokens":`...)
		b = strconv.AppendInt(b, int64(j.Cached), 10)
		switch {
		case j.Chat:
			b = append(b, `,"created_cache_tokens":`...)
			b = strconv.AppendInt(b, int64(j.createdTokens(prompt)), 10)
		case full:
			b = append(b, `,"created_cache_tokens":null`...)
		}
		if full {
			b = append(b, `,"multimodal_tokens":null`...)
		}
		b = append(b, '}')
	case full:
		b = append(b, `,"prompt_tokens_details":null`...)
	}
	if full || j.Chat && !final {
		b = append(b, `,"completion_tokens_details":null`...)
	}
	return append(b, '}')
}
