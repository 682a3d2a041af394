package migrate_test

import (
	"net/http"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pdmesh/pdmesh/test/harness"
)

var variable = regexp.MustCompile(`^\$(\{[^}]+\}|\w+)`)

// words splits a line as a shell does: blanks, both kinds of quotes, a backslash at the end of a line,
// and $name from vars.
func words(t *testing.T, line string, vars map[string]string) []string {
	t.Helper()
	var out []string
	var word strings.Builder
	quote, inWord := rune(0), false
	text := []rune(strings.ReplaceAll(line, "\\\n", " "))
	for i := 0; i < len(text); i++ {
		c := text[i]
		switch {
		case quote == 0 && (c == ' ' || c == '\n' || c == '\t'):
			if inWord {
				out = append(out, word.String())
				word.Reset()
				inWord = false
			}
		case (c == '\'' || c == '"') && (quote == 0 || quote == c):
			if inWord = true; quote == 0 {
				quote = c
			} else {
				quote = 0
			}
		case c == '$' && quote != '\'':
			inWord = true
			name := variable.FindString(string(text[i:]))
			value, ok := vars[strings.Trim(name, "${}")]
			require.True(t, ok, "%q is not set in %q", name, line)
			word.WriteString(value)
			i += len([]rune(name)) - 1
		default:
			inWord = true
			word.WriteRune(c)
		}
	}
	require.EqualValues(t, 0, quote, "unterminated quote in %q", line)
	if inWord {
		out = append(out, word.String())
	}
	return out
}

func TestWords(t *testing.T) {
	t.Parallel()
	vars := map[string]string{"model": "org/m", "host1-IP": "10.0.0.1", "h2": "b"}
	for _, tt := range []struct{ in, want string }{
		{"a  b\\\n  c", "a|b|c"},
		{`-d '{"a": "'$model'", "b": 1}'`, `-d|{"a": "org/m", "b": 1}`},
		{`--host "${host1-IP},${h2}" $h2`, "--host|10.0.0.1,b|b"},
		{`'it is $model'`, "it is $model"},
		{"''", ""},
	} {
		assert.Equal(t, tt.want, strings.Join(words(t, tt.in, vars), "|"), tt.in)
	}
}

// curl sends the request of a curl line. It supports the options that the documents use.
func curl(t *testing.T, line string, vars map[string]string) (status int, body string) {
	t.Helper()
	args := words(t, line, vars)
	require.True(t, len(args) != 0 && args[0] == "curl", "not a curl line: %q", line)
	method, url, data := "", "", ""
	var header []string
	for i := 1; i < len(args); i++ {
		switch arg := args[i]; {
		case arg == "-s", arg == "-N":
		case slices.Contains([]string{"-X", "-H", "-d"}, arg) && i+1 < len(args):
			i++
			switch arg {
			case "-X":
				method = args[i]
			case "-d":
				data = args[i]
			case "-H":
				name, value, ok := strings.Cut(args[i], ":")
				if !ok {
					t.Fatalf("header %q", args[i])
				}
				header = append(header, name, strings.TrimSpace(value))
			}
		case !strings.HasPrefix(arg, "-") && url == "":
			if url = arg; !strings.HasPrefix(url, "http://") {
				url = "http://" + url
			}
		default:
			t.Fatalf("unsupported option %q in %q", arg, line)
		}
	}
	if method == "" {
		method = http.MethodGet
		if data != "" {
			method = http.MethodPost
		}
	}
	resp, text, err := harness.Send(t.Context(), method, url, data, header...)
	require.NoError(t, err)
	return resp.StatusCode, text
}
