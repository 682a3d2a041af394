package jsontext_test

import (
	"encoding/json"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/pdmesh/pdmesh/sim/fakevllm/jsontext"
)

func TestAppendJSONString(t *testing.T) {
	t.Parallel()
	for _, s := range []string{"", "plain", `"\`, "\x00\x1f\b\f\n\r\t", "é🙂\u2028<>&", "bad\xff\xc3", strings.Repeat("a\"", 50)} {
		var back string
		out := jsontext.AppendString(nil, s)
		if err := json.Unmarshal(out, &back); err != nil {
			t.Fatalf("%q: %s: %v", s, out, err)
		}
		if expected := strings.ToValidUTF8(s, "\ufffd"); utf8.ValidString(s) && back != expected {
			t.Errorf("%q came back as %q", s, back)
		}
		if !utf8.Valid(out) {
			t.Errorf("invalid UTF-8 for %q", s)
		}
	}
}
