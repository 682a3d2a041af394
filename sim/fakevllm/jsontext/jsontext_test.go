package jsontext_test

import (
	"encoding/json"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pdmesh/pdmesh/sim/fakevllm/jsontext"
)

func TestAppendJSONString(t *testing.T) {
	t.Parallel()
	for _, s := range []string{"", "plain", `"\`, "\x00\x1f\b\f\n\r\t", "é🙂\u2028<>&", "bad\xff\xc3", strings.Repeat("a\"", 50)} {
		var back string
		out := jsontext.AppendString(nil, s)
		require.NoError(t, json.Unmarshal(out, &back), "%q: %s", s, out)
		if expected := strings.ToValidUTF8(s, "\ufffd"); utf8.ValidString(s) && back != expected {
			t.Errorf("%q came back as %q", s, back)
		}
		assert.True(t, utf8.Valid(out), "invalid UTF-8 for %q", s)
	}
}
