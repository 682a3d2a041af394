package continuation_test

import (
	"testing"

	"github.com/pdmesh/pdmesh/internal/openai"
)

// BenchmarkPass is what an event with one token takes while a stream may go on.
func BenchmarkPass(b *testing.B) {
	for name, c := range map[string]struct {
		kind  openai.Kind
		first string
		event string
	}{
		"completion": {openai.Completion, textEvent("The", []int{20}, []int{10}), textEvent(" sea", nil, []int{12345})},
		"chat":       {openai.Chat, roleEvent(20), chatEvent(`"content":" sea"`, 12345)},
	} {
		b.Run(name, func(b *testing.B) {
			body := `{"model":"m","stream":true,"prompt":"x","messages":[]}`
			a := newAnswer(b, c.kind, body)
			if _, err := a.Pass([]byte(c.first)); err != nil {
				b.Fatal(err)
			}
			event := []byte(c.event)
			buf := make([]byte, len(event))
			b.ReportAllocs()
			for b.Loop() {
				copy(buf, event)
				if _, err := a.Pass(buf); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
