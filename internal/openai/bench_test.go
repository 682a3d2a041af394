package openai_test

import (
	"bytes"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pdmesh/pdmesh/internal/openai"
	"github.com/pdmesh/pdmesh/internal/openai/request"
	"github.com/pdmesh/pdmesh/internal/openai/sse"
	"github.com/pdmesh/pdmesh/sim/testkit/leak"
)

func TestMain(m *testing.M) { leak.Main(m) }

func BenchmarkParse(b *testing.B) {
	small := []byte(`{"model":"m","messages":[{"role":"user","content":"hello there"}],"max_tokens":16,"stream":true}`)
	large := append(append([]byte(`{"model":"m","prompt":"`), make([]byte, 1<<20)...), `","max_tokens":16}`...)
	for i := range large {
		if large[i] == 0 {
			large[i] = 'x'
		}
	}
	prose := bytes.Clone(large)
	for i := 100; i+2 < len(prose)-40; i += 80 {
		prose[i] = '\\'
		prose[i+1] = "nn\"n"[i/80%4]
	}
	ids := []byte(`{"model":"m","prompt":[1`)
	for len(ids) < 1<<20 {
		ids = append(ids, ", 12345"...)
	}
	ids = append(ids, `],"max_tokens":16}`...)
	chat := func(text string) []byte {
		return []byte(`{"model":"m","messages":[{"role":"user","content":"` + strings.Repeat(text, 64<<10/len(text)) + `"}],"temperature":0,"max_tokens":1}`)
	}
	for _, bc := range []struct {
		name string
		body []byte
	}{
		{"100B", small}, {"1MiB text", large}, {"1MiB prose", prose}, {"1MiB ids", ids},
		{"64KiB prose", chat(` the quick brown fox jumps over 13 lazy dogs, and none of them looks up;\n`)},
		{"64KiB code", chat(`\tif err := f(\"a\", 'b'); err != nil {\n\t\treturn fmt.Errorf(\"f: %w\", err)\n\t}\n`)},
		{"64KiB Chinese", chat("人工智能模型的推理服务。")},
		{"64KiB Cyrillic", chat("Модель отвечает на вопросы. ")},
		{"64KiB emoji", chat("😀🚀🎉🤖")},
		{"64KiB some Chinese", chat(strings.Repeat(` the quick brown fox jumps over 13 lazy dogs, and none of them looks up;\n`, 8) + "你好，世界")},
		{"64KiB escaped Chinese", chat(`\u4f60\u597d\uff0c\u4e16\u754c`)},
	} {
		b.Run(bc.name, func(b *testing.B) {
			b.ReportAllocs()
			b.SetBytes(int64(len(bc.body)))
			for b.Loop() {
				r, err := request.Parse(openai.Completion, bc.body)
				require.NoError(b, err)
				e := r.NewEdit()
				e.Set(request.FieldMaxTokens, "1")
				require.NotEqualValues(b, 0, e.Body().Len(), "empty")
			}
		})
	}
}

// BenchmarkEvents measures the work of the data path for each event of a stream.
func BenchmarkEvents(b *testing.B) {
	event := `data: {"id":"c","object":"text_completion","created":1,"model":"m","choices":[{"index":0,"text":" t","logprobs":null,"finish_reason":null}]}` + "\n\n"
	batch := []byte(strings.Repeat(event, 16))
	b.ReportAllocs()
	b.SetBytes(int64(len(batch)))
	for b.Loop() {
		n := 0
		for rest := batch[:sse.EventEnd(batch, 0)]; ; n++ {
			e, tail, ok := sse.NextEvent(rest)
			if !ok {
				break
			}
			class, _ := sse.Classify(openai.Chat, e)
			require.True(b, !sse.IsDone(e) && !sse.LooksLikeError(e) && class == sse.EventContent, "misjudged")
			rest = tail
		}
		require.Equal(b, 16, n)
	}
}
