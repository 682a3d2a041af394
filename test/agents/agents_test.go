package agents_test

import (
	"bytes"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pdmesh/pdmesh/sim/testkit/leak"
	"github.com/pdmesh/pdmesh/test/agents"
)

func TestMain(m *testing.M) { leak.Main(m) }

// words are the words of more than three letters with a vowel that recordings may contain: member names,
// values and events of the two APIs, JSON Schema keywords, header names and values, and names of the two
// agents' packages.
const words = `
Accept Access Affinity Agent Anthropic Arch Beta Browser Claude Client Code Codex Connection Content Count Dangerous Direct
Encoding Features Lang Metadata Originator POST Package Request Retry Runtime Session Stainless Thread Timeout Turn Type
User Version Window access adaptive added additionalProperties agent alive annotations anthropic application arguments
array assistant async auto background beta block boolean cache cached call caller calls changes choice claude clear
client code codex command completed config content context control conversation count created creation data default defer deflate
delta description details developer disabled display done draft edits effort encrypted enum ephemeral error event
exclusiveMinimum exec external false function gzip high include incomplete index input installation integer interleaved
item items json keep loading logprobs management maximum message messages metadata minimum model name namespace null
number object omitted openai opencode output parallel parameters params part partial phase previous progress prompt properties read
reason reasoning required response responses result role root schema search sequence session signature start status stop
store stream strict string summary system temperature text thinking thread token tokens tool tools total transfer true
truncation turn turns type usage user version updates window write`

// Committed recordings contain filler only: no word except those of the APIs.
func TestRecordings_FillerOnly(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("recordings/*.txt")
	require.True(t, err == nil && len(files) == 3, "%v, %v", files, err)
	// IDs and signatures of the simulated engine are hexadecimal digits.
	id := regexp.MustCompile(`(chatcmpl(-tool)?-|resp_|msg_|rs_|fc_|"signature":")[0-9a-f]{32}`)
	long, allowed := regexp.MustCompile(`[A-Za-z]{4,}`), strings.Fields(words)
	size := 0
	for _, file := range files {
		raw, err := os.ReadFile(file)
		require.NoError(t, err)
		size += len(raw)
		for _, word := range long.FindAllString(id.ReplaceAllString(string(raw), ""), -1) {
			assert.False(t, strings.ContainsAny(strings.ToLower(word), "aeiouy") && !slices.Contains(allowed, word),
				"%s has the word %q", file, word)
		}
	}
	assert.LessOrEqual(t, size, 1<<20, "the recordings have %d bytes, want at most 1 MiB", size)
}

// The clients page and the recording script name the same versions.
func TestVersions(t *testing.T) {
	t.Parallel()
	list, err := agents.Recordings()
	require.NoError(t, err)
	page, err := os.ReadFile("../../docs/clients.md")
	require.NoError(t, err)
	script, err := os.ReadFile("../../scripts/record-agents.sh")
	require.NoError(t, err)
	for _, r := range list {
		row := "| `" + r.Agent + "` | " + r.Version + " |"
		assert.Contains(t, string(page), row, "the page has no row %s", row)
		if pin := "_version=" + r.Version + "\n"; !strings.Contains(string(script), pin) || !strings.Contains(string(script), "install "+r.Agent+" ") {
			t.Errorf("the script does not install %s %s", r.Agent, r.Version)
		}
	}
}

// The recordings contain three conversations of the expected form.
func TestRecordings(t *testing.T) {
	t.Parallel()
	list, err := agents.Recordings()
	require.True(t, err == nil && len(list) == 3, "%d recordings, %v", len(list), err)
	for i, want := range []struct {
		agent, path string
		holds       []string
	}{
		{"@anthropic-ai/claude-code", "/v1/messages", []string{`"tools":[`, `"cache_control":{"type":"ephemeral"}`, `"thinking":{"type":"adaptive"`, `"type":"tool_result"`, `"type":"thinking"`}},
		{"@openai/codex", "/v1/responses", []string{`"tools":[`, `"type":"function_call_output"`, `"type":"reasoning"`, `"store":false`}},
		{"opencode-ai", "/v1/responses", []string{`"tools":[`, `"type":"function_call_output"`, `"store":false`}},
	} {
		r := list[i]
		assert.True(t, r.Agent == want.agent && len(r.Exchanges) == 3 && len(r.Turns) == 3,
			"%s: %d exchanges, %d turns", r.Agent, len(r.Exchanges), len(r.Turns))
		for _, x := range r.Exchanges {
			if x.Path() != want.path || x.Method != "POST" || x.Status != 200 || len(x.Events) < 10 || x.Header.Get("Content-Type") != "application/json" {
				t.Errorf("%s: %s %s %v: %d with %d events", r.Agent, x.Method, x.Target, x.Header, x.Status, len(x.Events))
			}
		}
		last := r.Exchanges[len(r.Exchanges)-1]
		for _, part := range want.holds {
			assert.True(t, bytes.Contains(last.Body, []byte(part)), "%s: the last request has no %s", r.Agent, part)
		}
		text, err := r.Format()
		require.NoError(t, err)
		again, err := agents.Parse(text)
		require.NoError(t, err)
		if twice, err := again.Format(); err != nil || !bytes.Equal(text, twice) {
			t.Errorf("%s: parsing and formatting changes it, %v", r.Agent, err)
		}
	}
}

func TestFiller(t *testing.T) {
	t.Parallel()
	const doc = ` {"model": "m","tools":[{"name":"Read","description":"Reads a \"file\"\n\u00e9 Ünï 12 日本 🙂","input_schema":{"type":"object",` +
		`"properties":{"file_path":{"type":"string","enum":["Alpha"]},"type":{"type":["string","null"]}},"required":["file_path"],"additionalProperties":false}}],` +
		`"messages":[{"role":"user","content":"Alpha"},{"role":"assistant","content":[{"type":"tool_use","name":"Read","input":{"file_path":"Alpha","of":[{"file_path":1.50e3}]}}]}],` +
		`"input":[{"type":"function_call","name":"Read","arguments":"{\"file_path\": \"a <b>\\n\"}"}],"tool_choice":{"type":"tool","name":"Read"},"stream":true} `
	f := agents.NewFiller()
	out, err := f.JSON([]byte(doc))
	require.NoError(t, err)
	path, name, value := f.Text("file_path"), f.Text("Read"), f.Text("Alpha")
	for part, n := range map[string]int{
		`"name":"` + name + `"`: 4, `"` + path + `":{`: 1, `["` + path + `"]`: 1, `"input":{"` + path + `":"` + value + `","`: 1, `[{"` + path + `":1.50e3}]`: 1,
		`"{\"` + path + `\": \"`: 1, `"content":"` + value + `"`: 1, `"enum":["` + value + `"]`: 1, `{"type":["string","null"]}`: 1, `"stream":true} `: 1, ` {"model": "m"`: 1,
	} {
		assert.Equal(t, n, strings.Count(string(out), part), "%s in\n%s", part, out)
	}
	if len(out) != len(doc) || forms(string(out)) != forms(doc) || strings.ContainsAny(f.Text("aeiouyAEIOUYé"), "aeiouyAEIOUYé") {
		t.Errorf("the form changed:\n%s\n%s", doc, out)
	}
	for _, bad := range []string{`{"a"`, `{"a" 1}`, `["a"`, `[1 2]`, `{"a":"b`, `{a:1}`, `{} {}`} {
		if out, err := agents.NewFiller().JSON([]byte(bad)); err == nil {
			t.Errorf("%s became %s", bad, out)
		}
	}
}

// forms returns the characters that are neither letters nor digits, with their positions.
func forms(text string) string {
	return regexp.MustCompile(`[\pL\pN]`).ReplaceAllStringFunc(text, func(s string) string { return strings.Repeat("x", len(s)) })
}
