package request

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pdmesh/pdmesh/internal/openai"
)

// Invalid UTF-8 is found at any position, and reported before errors of the JSON syntax,
// because Python decodes first.
func TestNotUTF8(t *testing.T) {
	t.Parallel()
	long := strings.Repeat(`plain text\n`, 20)
	for _, bad := range []string{"\xff", "\xe4\xba", "\xed\xa0\x80", "\xc0\xaf"} {
		for _, body := range []string{
			`{"a":"%"}`, `{"%":1}`, `{"a":"` + long + `%"}`, `{"a":"%` + long + `"}`, `{"a":"` + long + `%` + long + `","b":1}`,
			`{"a":"%","b":"é"}`, `{"a":"é","b":"%"}`, `{"a":"é","b":["x",{"c":"%"}],"d":"é"}`, `{"sampling_params":{"%":"x"}}`,
			`{"sampling_params":{"a":"é"},"b":"%","extra_args":{"a":"é"}}`,
		} {
			_, err := ParseOther([]byte(strings.ReplaceAll(body, "%", bad)))
			assert.True(t, err != nil && strings.Contains(err.Error(), "error parsing the body"),
				"%q in %s: %v", bad, body, err)
			_, err = ParseOther([]byte(strings.ReplaceAll(body, "%", "人é")))
			assert.NoError(t, err, body)
			if _, err = ParseOther([]byte(strings.ReplaceAll(body, "%", bad) + "x")); err == nil || !strings.Contains(err.Error(), "error parsing the body") {
				t.Errorf("%q in %s, and more: %v", bad, body, err)
			}
		}
	}
	_, err := ParseOther([]byte("{\"a\":1,\xc3\xa9}"))
	assert.ErrorContains(t, err, "expected a name")
}

// An error has the position and the kind of the defect in a string, whichever code path detects it.
func TestStringError_Position(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name, end, message string
		back               int // position of the error relative to the start of end; -1: the string's start
	}{
		{"no end", ``, "unterminated string", -1},
		{"cut behind a backslash", `\`, "unterminated string", -1},
		{"cut within an escape", `\u12`, `invalid \u escape`, 1},
		{"unknown escape", `\x"}`, "invalid escape", 0},
		{"unknown escape behind a known one", `\n\x"}`, "invalid escape", 2},
		{"too few digits", `\u12"}`, `invalid \u escape`, 1},
		{"a letter for a digit", `\u00g1"}`, `invalid \u escape`, 1},
		{"a line's end", "\n\"}", "control character in a string", 0},
		{"a control character behind an escape", "\\\\\x1f\"}", "control character in a string", 2},
		{"an escaped control character", "\\\n\"}", "invalid escape", 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			for n := range 300 {
				for _, behind := range []string{"", strings.Repeat(" ", 100)} {
					if behind != "" && !strings.HasSuffix(tc.end, "}") {
						continue
					}
					at := 5 + 1 + n + tc.back
					if tc.back < 0 {
						at = 5
					}
					body := `{"a":"` + strings.Repeat("p", n) + tc.end + behind
					_, err := ParseOther([]byte(body))
					want := fmt.Sprintf("invalid JSON: %s at byte %d", tc.message, at)
					require.True(t, err != nil && strings.HasSuffix(err.Error(), want),
						"%q: %v, want %s", body, err, want)
				}
			}
		})
	}
}

func TestSeveralPrompts(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		prompt string
		want   bool
	}{
		{`"a"`, false}, {`"a,b"`, false}, {`[]`, false}, {`[1,2]`, false}, {`[ 1 , 2 ]`, false}, {`[0,"a"]`, false}, {`null`, false},
		{`["a"]`, false}, {`[ "a" ]`, false}, {`["a, \",\" b"]`, false}, {`[[1,2]]`, false}, {`[ [1 , 2] ]`, false}, {`[["a","b"]]`, false},
		{`["a","b"]`, true}, {`[ "a" , "b" ]`, true}, {`[[1],[2]]`, true}, {`[[1,2],3]`, true}, {`[[],[]]`, true}, {`["a",1]`, true}, {`[["a","b"],["c"]]`, true},
		{`["a",["b"]]`, true}, {`["a",[]]`, true}, {`[["a","b"],{}]`, true},
		{`["a","b"],"prompt":["a"]`, false}, {`["a"],"prompt":["a","b"]`, true}, {`["a","b"],"prompt":"a"`, false},
		{`["a"],"stop":["a","b"]`, false}, {`["a","b"],"stop":["a"]`, true},
	} {
		for kind, want := range map[openai.Kind]bool{openai.Completion: tc.want, openai.Chat: false} {
			r, err := Parse(kind, []byte(`{"messages":[],"stop_token_ids":[7,8],"prompt":`+tc.prompt+`,"x":["a","b"],"y":[]}`))
			if err != nil || (r.Bypass == "several_prompts") != want {
				t.Errorf("%v: %s: %+v, %v; want %v", kind.Path(), tc.prompt, r, err, want)
			}
		}
	}
}
