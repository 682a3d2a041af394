package continuation

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/pdmesh/pdmesh/internal/openai"
	"github.com/pdmesh/pdmesh/internal/openai/jsonscan"
	"github.com/pdmesh/pdmesh/internal/openai/request"
)

const (
	// maxCuts bounds the tokens that are generated again because the client has none of their text.
	maxCuts = 16
	// maxTextless bounds the different ids that may be special tokens.
	maxTextless = 256
	// maxStop bounds the length of a stop string in bytes: the text is compared once for each part of one that
	// the engine may have held back.
	maxStop = 256
	// minWord is the minimum length in bytes of a word that separates their texts.
	minWord = 3
	// halfCharacter is the end of a text whose last token has only a part of a character.
	halfCharacter = "\uFFFD"
	// markup has the characters that make the parsers of tool calls and of reasoning hold text back.
	markup = "<>[]{}|`"
	// harmony ends the header of a message in the Harmony format of gpt-oss.
	harmony = "<|message|>"
)

// seam returns the number of the answer's ids from which the next leg continues, and their
// text. rest is the end of that text if the client does not have it yet: with stop strings,
// an engine holds back text that may begin one.
//
// The ids must have exactly the text that the client has, apart from special tokens, and
// end with a whole character. The next engine looks for stop strings only in its own text,
// so none may begin before the seam.
func (a *Answer) seam(detokenize Detokenize) (n int, history, rest, why string) {
	n = len(a.ids.list)
	if a.req.Kind == openai.Chat {
		n = max(a.mark, a.logged) // later ids belong to text that a parser holds back, or have no text
	}
	stops := a.stops()
	if slices.ContainsFunc(stops, func(s string) bool { return len(s) > maxStop }) {
		return 0, "", "", ReasonSeam
	}
	var special []uint32
	looked := len(stops) > 0 // with stop strings, an id without text may belong to text that is held back
	for cuts := 0; n >= 0 && cuts < maxCuts; cuts++ {
		if n < a.logged || a.wantsIDs && n < len(a.ids.list) {
			break // the client has logprobs or ids that would be generated again
		}
		if n == 0 && a.delivered.texts[content].n+a.delivered.texts[reasoning].n == 0 {
			return 0, "", "", "" // the client has no text yet
		}
		ids := slices.DeleteFunc(slices.Clone(a.ids.list[:n]), func(id uint32) bool { return slices.Contains(special, id) })
		text, err := detokenize(jsonIDs(ids))
		if err != nil {
			return 0, "", "", ReasonText
		}
		if a.req.Kind == openai.Chat && strings.Contains(text, harmony) {
			break // vLLM's parser always expects a header first, and takes the rest of the message for one
		}
		if a.delivered.texts[content].lead == ' ' && !strings.HasPrefix(text, " ") && a.switches == 0 {
			text = " " + text // some tokenizers drop it at the start of a text
		}
		if !strings.HasSuffix(text, halfCharacter) {
			if rest, ok := a.heldBack(text, stops); ok && !mayStop(text, stops) {
				return n, text, rest, ""
			}
			if !looked {
				looked = true
				if special = a.special(detokenize); len(special) > 0 {
					continue // compare again without them
				}
			}
		}
		n--
	}
	return 0, "", "", ReasonSeam
}

// special returns the ids without text that may be special tokens: those with a text of whole characters.
// Streams omit special tokens, /detokenize does not. One request returns all texts, separated by Answer.separator.
func (a *Answer) special(detokenize Detokenize) (list []uint32) {
	if len(a.textlessIDs) == 0 || a.separator == "" {
		return nil
	}
	ids := []uint32{a.separatorID}
	for _, id := range a.textlessIDs {
		ids = append(ids, id, a.separatorID)
	}
	text, _ := detokenize(jsonIDs(ids)) // after an error, there are too few texts
	texts := strings.Split(text, a.separator)
	if len(texts) != len(a.textlessIDs)+2 {
		return nil
	}
	for i, id := range a.textlessIDs {
		if text := strings.TrimSpace(texts[i+1]); text != "" && !strings.Contains(text, halfCharacter) {
			list = append(list, id)
		}
	}
	return list
}

// heldBack returns the end of text that the client does not have. ok is false if the rest
// of text differs from the client's, or if the engine cannot have held the end back.
func (a *Answer) heldBack(text string, stops []string) (rest string, ok bool) {
	held := 0
	for _, s := range stops {
		held = max(held, utf8.RuneCountInString(s)-1)
	}
	ends := make([]int, 1, held+1)
	for ends[0] = len(text); len(ends) <= held && ends[len(ends)-1] > 0; {
		at := ends[len(ends)-1]
		_, size := utf8.DecodeLastRuneInString(text[:at])
		ends = append(ends, at-size)
	}
	for _, at := range ends {
		if a.switches == 0 && a.delivered.texts[content].equals(text[:at]) {
			return text[at:], a.passable(text[at:])
		}
	}
	if a.req.Kind == openai.Completion {
		return "", false
	}
	run := a.run
	if a.switches == 0 {
		run = a.delivered.texts[content]
	}
	// In a message with several parts, only the last one is compared: the markup between them is not known.
	// In a repetitive text, several ends fit; the longest is used, since engines hold back all that they may.
	for _, at := range slices.Backward(ends) {
		if at >= run.n && run.equals(text[at-run.n:at]) {
			return text[at:], a.passable(text[at:])
		}
	}
	// vLLM's parsers hold white space at the end of reasoning back until more reasoning follows.
	if at := len(strings.TrimRightFunc(text, unicode.IsSpace)); a.channel == reasoning && at >= run.n && run.equals(text[at-run.n:at]) {
		return text[at:], true
	}
	return "", false
}

// passable reports whether the client may get a held-back text unchanged. It may not if a
// parser could change the text.
func (a *Answer) passable(rest string) bool {
	return a.req.Kind == openai.Completion || !strings.ContainsAny(rest, markup)
}

// stops returns the stop strings of the request.
func (a *Answer) stops() []string {
	raw := a.req.Raw(request.FieldStop)
	if len(raw) == 0 || jsonscan.IsNull(raw) {
		return nil
	}
	var list []string
	if raw[0] == '"' {
		return []string{string(jsonscan.Unquote(raw))}
	}
	_ = json.Unmarshal(raw, &list) // the engine has accepted it
	return list
}

// mayStop reports whether a stop string may begin in text and end after it.
func mayStop(text string, stops []string) bool {
	for _, s := range stops {
		for n := 1; n < len(s); n++ {
			if strings.HasSuffix(text, s[:n]) {
				return true
			}
		}
	}
	return false
}

// ending returns the events that complete the answer. rest is the text that the client does not
// have yet; finish reports whether the finish reason is missing, too, which then is "length".
func (a *Answer) ending(rest string, finish bool) []byte {
	object := "text_completion"
	if a.req.Kind == openai.Chat {
		object = "chat.completion.chunk"
	}
	var out []byte
	begin := func() {
		out = fmt.Appendf(out, `data: {"id":%s,"object":"%s","created":%s,"model":%s`, a.id, object, a.created, a.model)
	}
	usage := fmt.Sprintf(`,"usage":{"prompt_tokens":%d,"total_tokens":%d,"completion_tokens":%d`, len(a.prompt.list), len(a.prompt.list)+len(a.ids.list), len(a.ids.list))
	if finish {
		text := `"text":` + quoted([]byte(rest))
		if a.req.Kind == openai.Chat {
			text = `"delta":{"` + a.channel.name() + `":` + quoted([]byte(rest)) + `}`
		}
		begin()
		out = append(out, `,"choices":[{"index":0,`+text+`,"logprobs":null,"finish_reason":"length","stop_reason":null}]`...)
		if a.wantsUsageOfEvents() {
			out = append(append(out, usage...), '}')
		}
		out = append(out, "}\n\n"...)
	}
	if a.req.IncludeUsage && !a.usage {
		begin()
		out = append(append(out, `,"choices":[]`...), usage...)
		if a.Cached > 0 {
			out = fmt.Appendf(out, `,"prompt_tokens_details":{"cached_tokens":%d}`, min(a.Cached, len(a.prompt.list)))
		}
		out = append(out, "}}\n\n"...)
	}
	return append(out, "data: [DONE]\n\n"...)
}

// wantsUsageOfEvents reports whether the client wants the usage so far in every event.
func (a *Answer) wantsUsageOfEvents() bool {
	raw := jsonscan.Value(a.req.Raw(request.FieldStreamOptions), 0, "continuous_usage_stats")
	if raw == nil || !a.req.IncludeUsage {
		return false
	}
	on, _ := jsonscan.LaxBool(raw) // the engine has accepted it
	return on
}
