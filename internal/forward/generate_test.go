package forward_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pdmesh/pdmesh/sim/fakevllm"
)

const generatePath = "/inference/v1/generate"

// tokensBody returns a request whose prompt is token ids.
func tokensBody(stream bool, sampling string) string {
	return fmt.Sprintf(`{"model":"m","token_ids":[11,12,13,9007199254740993],"sampling_params": {"max_tokens":8,"stop":["zzz"]%s},"stream":%v,"unknown":{"big":18446744073709551615}}`, sampling, stream)
}

// tokenIDs returns the token ids of an answer.
func (a answer) tokenIDs(t *testing.T) (ids []int) {
	t.Helper()
	type chunk struct {
		Choices []struct {
			TokenIDs []int `json:"token_ids"`
		}
	}
	texts := []string{string(a.body)}
	if strings.HasPrefix(a.header.Get("Content-Type"), "text/event-stream") {
		texts = a.events()
	}
	for _, text := range texts {
		if text == "[DONE]" {
			continue
		}
		var c chunk
		require.NoError(t, json.Unmarshal([]byte(text), &c), text)
		for _, choice := range c.Choices {
			ids = append(ids, choice.TokenIDs...)
		}
	}
	return ids
}

// checkTokensAnswer checks an answer of token ids against the text of the model.
func (r *rig) checkTokensAnswer(a answer, body string) {
	r.t.Helper()
	want, err := fakevllm.ExpectedAt(generatePath, []byte(body), 0)
	require.NoError(r.t, err)
	require.True(r.t, a.err == nil && a.status == http.StatusOK && slices.Equal(a.tokenIDs(r.t), want[0].Tokens),
		"%d, %v: %s; want %v", a.status, a.err, a.body, want[0].Tokens)
}

// A request for several answers, or for logprobs of the prompt, is decode-only.
func TestTokens_DecodeOnly(t *testing.T) {
	t.Parallel()
	for sampling, reason := range map[string]string{`,"n":2`: "n", `,"prompt_logprobs":1`: "prompt_logprobs"} {
		t.Run(reason, func(t *testing.T) {
			t.Parallel()
			r := start(t, fakevllm.NIXL, 1, 1, nil)
			a := r.post(generatePath, tokensBody(false, sampling))
			if a.status != http.StatusOK || a.header.Get("X-PD-Decode-Only") != reason || r.P[0].Counters().Requests != 0 {
				t.Errorf("%d %s: %s", a.status, a.header.Get("X-PD-Decode-Only"), a.body)
			}
			r.checkEngines()
		})
	}
}

// Engines without the option for this route refuse it, and are not blamed.
func TestTokens_OptionUnsupported(t *testing.T) {
	t.Parallel()
	r := start(t, fakevllm.NIXL, 1, 1, nil)
	const said = `{"error":{"message":"Scale-out endpoints are disabled. Restart vllm serve with --enable-scale-out to enable them.","type":"PermissionDeniedError","param":null,"code":403}}`
	script(t, r.P[0], fakevllm.Fault{Kind: fakevllm.FaultStatus, Status: http.StatusForbidden, Body: said, Path: generatePath})
	a := r.post(generatePath, tokensBody(false, ""))
	assert.True(t, a.status == http.StatusForbidden && string(a.body) == said, "%d %s", a.status, a.body)
	r.noneTroubled()
	assert.Equal(t, "", r.rec.retried(), "tried again")
}
