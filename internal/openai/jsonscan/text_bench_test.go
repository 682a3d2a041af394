package jsonscan

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// texts returns the kinds of text that strings of a request contain.
func texts() []struct{ name, text string } {
	repeat := func(s string, n int) string { return strings.Repeat(s, n/len(s)) }
	const line = ` the quick brown fox jumps over 13 lazy dogs, and none of them looks up;\n`
	return []struct{ name, text string }{
		{"key of 5", "model"},
		{"20 bytes", strings.Repeat("x", 20)},
		{"40 bytes", strings.Repeat("x", 40)},
		{"40 bytes, newline", strings.Repeat("x", 38) + `\n`},
		{"100 bytes", strings.Repeat("x", 100)},
		{"200 bytes prose", line + line + line[:50]},
		{"64KiB plain", strings.Repeat("x", 64<<10)},
		{"64KiB prose", repeat(line, 64<<10)},
		{"1MiB prose", repeat(line, 1<<20)},
		{"64KiB code", repeat(`\tif err := f(\"a\", 'b'); err != nil {\n\t\treturn fmt.Errorf(\"f: %w\", err)\n\t}\n`, 64<<10)},
		{"64KiB JSON in JSON", repeat(`{\"a\":\"b\\n\",\"id\":12,\"path\":\"C:\\\\x\"},`, 64<<10)},
		{"64KiB all escapes", repeat(`\n`, 64<<10)},
		{"64KiB escaped Chinese", repeat(`\u4f60\u597d\uff0c\u4e16\u754c`, 64<<10)},
		{"64KiB accents escaped", repeat(`L'\u00e9t\u00e9 dernier, j'ai pass\u00e9 mes vacances en Gr\u00e8ce.\n`, 64<<10)},
		{"64KiB Chinese", repeat("人工智能模型的推理服务。", 64<<10)},
	}
}

func BenchmarkText(b *testing.B) {
	for _, tc := range texts() {
		body := []byte(tc.text + `"}],"temperature":0,"max_tokens":1}`)
		want := len(tc.text)
		b.Run(tc.name, func(b *testing.B) {
			b.SetBytes(int64(want))
			for b.Loop() {
				n, _ := text(body)
				require.Equal(b, want, n)
			}
		})
	}
}
