package replay

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pdmesh/pdmesh/sim/fakevllm"
	"github.com/pdmesh/pdmesh/sim/loadgen"
	"github.com/pdmesh/pdmesh/sim/testkit/leak"
)

func TestMain(m *testing.M) { leak.Main(m) }

// The expected answer, which is computed token by token with the body, equals the
// answer of the engine to that body.
func TestRequest_ExpectedAnswer(t *testing.T) {
	t.Parallel()
	for _, e := range []loadgen.Entry{
		{InputLength: 1, OutputLength: 1, HashIDs: []int64{3}},
		{InputLength: 512, OutputLength: 7, HashIDs: []int64{3}},
		{InputLength: 1200, OutputLength: 700, HashIDs: []int64{3, 182789, 4}},
	} {
		body, want := request(&e)
		var fields struct {
			Model     string `json:"model"`
			Prompt    []int  `json:"prompt"`
			MaxTokens int    `json:"max_tokens"`
			IgnoreEOS bool   `json:"ignore_eos"`
		}
		require.NoError(t, json.Unmarshal(body, &fields))
		if len(fields.Prompt) != e.InputLength || fields.MaxTokens != e.OutputLength || !fields.IgnoreEOS || fields.Model != modelName {
			t.Errorf("%d + %d tokens: body has %d + %d", e.InputLength, e.OutputLength, len(fields.Prompt), fields.MaxTokens)
		}
		answers, err := fakevllm.ExpectedAt("/v1/completions", body, 0)
		require.NoError(t, err)
		a := answers[0]
		if a.Text != string(want.Text) || a.PromptTokens != want.PromptTokens || len(a.Tokens) != want.CompletionTokens || a.FinishReason != want.FinishReason {
			t.Errorf("%d + %d tokens: the engine answers %d + %d, %q", e.InputLength, e.OutputLength, a.PromptTokens, len(a.Tokens), a.FinishReason)
		}
	}
}

func TestUsage(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name, args, want string
	}{
		{"no trace", "", "--trace is missing"},
		{"speed zero", "--trace x --speed 0", "--speed"},
		{"speed NaN", "--trace x --speed nan", "--speed"},
		{"negative limit", "--trace x --limit=-1", "--limit"},
		{"no decode", "--trace x --decode 0", "at least 1"},
		{"in flight", "--trace x --max-in-flight 0", "--max-in-flight"},
		{"timeout", "--trace x --timeout 0s", "--timeout"},
		{"argument", "--trace x more", "unexpected argument"},
		{"unknown flag", "--what", "unknown flag"},
		{"flag without value", "--trace", "needs an argument"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			var out, errs bytes.Buffer
			assert.Equal(t, 2, Run(t.Context(), strings.Fields(tt.args), &out, &errs), "exit code")
			require.Contains(t, errs.String(), tt.want)
		})
	}
}

func TestBadTrace(t *testing.T) {
	t.Parallel()
	bad := filepath.Join(t.TempDir(), "trace")
	require.NoError(t, os.WriteFile(bad, []byte("hello\n"), 0o600))
	for path, want := range map[string]string{bad: "line 1", bad + ".none": "no such file"} {
		var out, errs bytes.Buffer
		if code := Run(t.Context(), []string{"--trace", path}, &out, &errs); code != 1 || !strings.Contains(errs.String(), want) {
			t.Errorf("%s: exit code %d, %q", path, code, errs.String())
		}
	}
}

func TestReadableNumbers(t *testing.T) {
	t.Parallel()
	for n, want := range map[int]string{0: "0", 999: "999", 1000: "1,000", 12031: "12,031", 4123456: "4,123,456", -1234: "-1,234"} {
		assert.Equal(t, want, thousands(n), "%d formatted as", n)
	}
	for d, want := range map[time.Duration]string{
		0: "0s", 123456 * time.Nanosecond: "120µs", 2345 * time.Microsecond: "2.35ms", 45678 * time.Microsecond: "45.7ms",
		12345 * time.Millisecond: "12.3s", 3*time.Minute + 1600*time.Millisecond: "3m2s",
	} {
		assert.Equal(t, want, round(d).String(), "%v formatted as", d)
	}
}

func TestProgressStops(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	stop := startProgress(&out, &tally{total: 5})
	stop()
	if out.Len() != 0 {
		t.Errorf("wrote %q before its first tick", out.String())
	}
}
