package fakevllm_test

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"os"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pdmesh/pdmesh/sim/fakevllm"
)

// TestForms checks the responses to forms against recorded ones of vLLM 0.32, which test/real
// verifies.
func TestForms(t *testing.T) {
	t.Parallel()
	s := fakevllm.StartTest(t, fakevllm.Options{Models: []string{"m", "b", "x", "bQ==", "m\r\n--Bx", "m--Bx"}, Transcription: true})
	raw, err := os.ReadFile("testdata/forms.json")
	require.NoError(t, err)
	var list []struct {
		Name, Type, Body, Answer string
		Status                   int
	}
	require.NoError(t, json.Unmarshal(raw, &list))
	// Forms that Go's parser reads differently from Python's. The proxy refuses all of them.
	skip := map[string]bool{"disp twice": true, "two names": true, "escaped backslash": true, "charset utf-7": true,
		"data begins with boundary": true, "two boundaries": true, "both filenames": true, "filename star": true, "name star": true, "fold": true,
		"lf": true, "attachment": true, "empty filename": true, "space before colon": true, "xargs kvp": true}
	for _, r := range list {
		if skip[r.Name] {
			continue
		}
		var body []byte
		for _, c := range r.Body {
			body = append(body, byte(c))
		}
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, s.URL()+"/v1/audio/transcriptions", bytes.NewReader(body))
		require.NoError(t, err)
		if r.Type != "" {
			req.Header.Set("Content-Type", r.Type)
		}
		req.Close = true
		resp, err := http.DefaultTransport.RoundTrip(req)
		require.NoError(t, err)
		got, err := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		require.NoError(t, err)
		if resp.StatusCode != r.Status {
			t.Errorf("%s: %d %s\nwant %d %s", r.Name, resp.StatusCode, got, r.Status, r.Answer)
			continue
		}
		if r.Status == http.StatusOK {
			continue
		}
		assert.Equal(t, kindOf(t, r.Answer), kindOf(t, string(got)), "%s: %s\nwant %s", r.Name, got, r.Answer)
	}
}
