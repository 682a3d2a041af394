package jsonscan

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// Strings have every length around the strides, and end or become invalid at every position.
func TestStringsOfEveryLength(t *testing.T) {
	t.Parallel()
	for n := range 160 {
		for at := -1; at < n; at++ {
			for _, c := range []string{`\n`, `\"`, "\x01", "\x1f", "ü", `\u00e9`, `\x`, "\x7f"} {
				text := strings.Repeat("p", n)
				if at >= 0 {
					text = text[:at] + c + text[at:]
				}
				tok := []byte(`"` + text + `"`)
				s := Scanner{Text: tok}
				end, err := s.str(0)
				require.Equal(t, err == nil, json.Valid(tok), "%q: %v, encoding/json says", tok, err)
				require.False(t, err == nil && end != len(tok), "%q ends at %d, want %d", tok, end, len(tok))
			}
		}
	}
}
