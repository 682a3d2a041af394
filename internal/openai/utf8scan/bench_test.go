package utf8scan

import (
	"math/rand/v2"
	"strings"
	"testing"
	"unicode/utf8"
)

// Texts of the kinds that prompts are.
func texts() []struct{ name, text string } {
	repeat := func(s string, n int) string { return strings.Repeat(s, n/len(s)) }
	const (
		chinese  = "人工智能模型的推理服务。"
		cyrillic = "Модель отвечает на вопросы. "
		emoji    = "😀🚀🎉🤖"
		french   = "L'été dernier, j'ai passé mes vacances en Grèce, où il a fait très chaud. "
		english  = "the quick brown fox jumps over 13 lazy dogs, and none of them looks up; "
	)
	mixed := strings.Repeat(english, 8) + "你好，" + strings.Repeat(english, 5) + "世界 " + english
	return []struct{ name, text string }{
		{"67 plain", repeat("x", 67)},
		{"67 Chinese", repeat("人", 66) + "x"},
		{"67 French", "é" + french[:65]},
		{"100 plain", repeat("x", 100)},
		{"100 Chinese", repeat("人", 99) + "x"},
		{"200 plain", repeat("x", 200)},
		{"200 Chinese", repeat("人", 198) + "xx"},
		{"64KiB Chinese", repeat(chinese, 64<<10)},
		{"1MiB Chinese", repeat(chinese, 1<<20)},
		{"64KiB Cyrillic", repeat(cyrillic, 64<<10)},
		{"64KiB emoji", repeat(emoji, 64<<10)},
		{"64KiB French", repeat(french, 64<<10)},
		{"64KiB English, some Chinese", repeat(mixed, 64<<10)},
		{"64KiB English, one Chinese", "你" + repeat(english, 64<<10)},
		{"4MiB, one in 20 not ASCII", sprinkled(4<<20, 20)},
		{"4MiB, one in 100 not ASCII", sprinkled(4<<20, 100)},
		{"4MiB, one in 200 not ASCII", sprinkled(4<<20, 200)},
	}
}

// sprinkled is ASCII with one in rarity characters that is not, where no branch
// predictor expects it.
func sprinkled(n, rarity int) string {
	r := rand.New(rand.NewPCG(1, 2))
	var s strings.Builder
	for s.Len() < n {
		if r.IntN(rarity) == 0 {
			s.WriteString("é")
		} else {
			s.WriteByte('p')
		}
	}
	return s.String()
}

func BenchmarkValid(b *testing.B) {
	for _, tc := range texts() {
		text := []byte(tc.text)
		for _, side := range []struct {
			name string
			f    func([]byte) bool
		}{{"utf8", utf8.Valid}, {"blocks", Valid}} {
			b.Run(tc.name+"/"+side.name, func(b *testing.B) {
				b.SetBytes(int64(len(text)))
				for b.Loop() {
					if !side.f(text) {
						b.Fatal("not UTF-8")
					}
				}
			})
		}
	}
}
