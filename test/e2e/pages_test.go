package e2e_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pdmesh/pdmesh/sim/fakevllm"
	"github.com/pdmesh/pdmesh/sim/testkit"
	"github.com/pdmesh/pdmesh/test/harness"
)

// Pages of an origin given by a flag may call both servers and read streams; the recording that such a
// page sends is accepted.
func TestPageAndRecording(t *testing.T) {
	t.Parallel()
	engine := fakevllm.StartTest(t, fakevllm.Options{Models: []string{model}, Transcription: true})
	for _, kind := range []string{"own", "std"} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			address := bareProxy(t, func(string) []string {
				return []string{"--decode", engine.Address(), "--upstream", kind, "--api-key", "k", "--allowed-origins", `["https://a.example"]`}
			})
			send := func(method, path, contentType, body string, header ...string) (*http.Response, string) {
				resp, text, err := harness.Send(t.Context(), method, "http://"+address+path, body, append(header, "Origin", "https://a.example", "Content-Type", contentType)...)
				require.NoError(t, err)
				assert.Equal(t, "https://a.example", resp.Header.Get("Access-Control-Allow-Origin"),
					"%s %s: %s, for pages of", method, path, resp.Status)
				return resp, text
			}
			testkit.Eventually(t, soon, func() error {
				if resp, body := send(http.MethodGet, "/health", "", ""); resp.StatusCode != http.StatusOK {
					return fmt.Errorf("%s %s", resp.Status, body)
				}
				return nil
			})
			const chat = "/v1/chat/completions"
			stream := fmt.Sprintf(`{"model":%q,"messages":[{"role":"user","content":"a"}],"max_tokens":3,"stream":true}`, model)
			if resp, body := send(http.MethodOptions, chat, "", "", "Access-Control-Request-Method", "POST", "Access-Control-Request-Headers", "authorization"); resp.StatusCode != http.StatusOK ||
				body != "OK" || resp.Header.Get("Access-Control-Allow-Headers") != "authorization" {
				t.Errorf("preflight: %s %v %s", resp.Status, resp.Header, body)
			}
			if resp, _ := send(http.MethodPost, chat, "application/json", stream); resp.StatusCode != http.StatusUnauthorized {
				t.Errorf("without the key: %s", resp.Status)
			}
			if resp, body := send(http.MethodPost, chat, "application/json", stream, "Authorization", "Bearer k"); resp.StatusCode != http.StatusOK || !strings.HasSuffix(body, "data: [DONE]\n\n") {
				t.Errorf("a stream: %s %s", resp.Status, body)
			}
			form := "--B\r\nContent-Disposition: form-data; name=\"model\"\r\n\r\n" + model + "\r\n--B\r\nContent-Disposition: form-data; name=\"file\"; filename=\"a\"\r\n\r\nRIFF\r\n--B--\r\n"
			resp, body := send(http.MethodPost, "/v1/audio/transcriptions", "multipart/form-data; boundary=B", form, "Authorization", "Bearer k")
			if want := strings.Join(fakevllm.ExpectedTranscription([]byte("RIFF"), ""), ""); resp.StatusCode != http.StatusOK || !strings.Contains(body, want) || resp.Header.Get("X-PD-Decode-Only") != "route" {
				t.Errorf("a recording: %s %v %s", resp.Status, resp.Header, body)
			}
			for _, q := range engine.Requests() {
				assert.Equal(t, "", q.Header.Get("Origin"), "the engine received Origin on %s", q.Path)
			}
		})
	}
}
