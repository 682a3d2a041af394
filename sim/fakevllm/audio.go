package fakevllm

import (
	"cmp"
	"fmt"
	"hash/crc32"
	"slices"
	"strings"

	"github.com/pdmesh/pdmesh/sim/fakevllm/jsontext"
	"github.com/pdmesh/pdmesh/sim/fakevllm/model"
	"github.com/pdmesh/pdmesh/sim/fakevllm/pydantic"
	"github.com/pdmesh/pdmesh/sim/fakevllm/request"
)

// transcribedTokens is the number of tokens in the transcript of any file.
const transcribedTokens = 12

// ExpectedTranscription returns the transcript of a file, a word for each token.
func ExpectedTranscription(file []byte, prompt string) []string {
	transcript := model.Generate(model.Tokenize(fmt.Sprintf("%s %d %08x", prompt, len(file), crc32.ChecksumIEEE(file))), model.Sampling{MaxTokens: transcribedTokens})
	words := make([]string, len(transcript.Tokens))
	for i, id := range transcript.Tokens {
		words[i] = string(model.AppendWord(nil, id))
	}
	return words
}

// transcribe answers /v1/audio/transcriptions and /v1/audio/translations.
func (x *exchange) transcribe(path string, body []byte) {
	f, err := request.ReadForm(x.r, body)
	if err == nil {
		err = f.Check()
	}
	if err != nil {
		x.refuse(err)
		return
	}
	s := x.life.server
	if xargs := f.Texts["vllm_xargs"]; strings.Contains(xargs, "transfer_params") {
		s.count.Violate("%s engine: a form with %s", s.opt.Role, xargs)
	}
	name, named := f.Texts["model"]
	if named && !x.life.serves(name) {
		x.refuse(pydantic.ModelNotFound(name, s.opt.Models))
		return
	}
	name = cmp.Or(name, s.opt.Models[0])
	if !x.lifetime.Wait(s.opt.TTFT) {
		x.abandon()
		return
	}
	words := ExpectedTranscription(f.Files["file"], f.Texts["prompt"])
	if stream, _ := pydantic.Bool("stream", jsontext.AppendString(nil, f.Texts["stream"])); stream { // it was checked
		x.streamWords(path, name, words)
		return
	}
	x.answer(jsontext.Append(nil, `{"text":$,"usage":{"type":"duration","seconds":$}}`, strings.Join(words, ""), len(f.Files["file"])/1000), nil)
	x.completed()
}

// streamWords answers with an event for each word.
func (x *exchange) streamWords(path, model string, words []string) {
	x.beginStream()
	if x.strike(AfterHeaders, 0) {
		return
	}
	kind, id := "transcription.chunk", "trsc-"
	if strings.HasSuffix(path, "translations") {
		kind, id = "translation.chunk", "trsl-"
	}
	head := jsontext.Append(nil, `data: {"id":$,"object":$,"created":$,"model":$,"choices":[{"delta":{"content":`,
		id+x.r.Header.Get("X-Request-Id"), kind, x.life.started.Unix(), model)
	for i, word := range words {
		if i > 0 && !x.lifetime.Wait(x.life.server.opt.ITL) {
			x.abandon()
			return
		}
		event := append(jsontext.AppendString(slices.Clip(head), word), '}')
		if i == len(words)-1 {
			event = append(event, `,"finish_reason":"stop","stop_reason":null`...)
		}
		if !x.emit(append(event, "}]}\n\n"...)) {
			return
		}
		if x.strike(AfterTokens, i+1) {
			return
		}
	}
	if !x.emit([]byte("data: [DONE]\n\n")) {
		return
	}
	x.completed()
}
