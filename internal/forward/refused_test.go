package forward_test

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pdmesh/pdmesh/internal/forward"
	"github.com/pdmesh/pdmesh/sim/fakevllm"
)

// A request with an encoded body gets 415 with the name of the encoding, and reaches no engine. "identity" is
// not an encoding.
func TestEncodedBodies(t *testing.T) {
	t.Parallel()
	r := start(t, fakevllm.Plain, 0, 1, nil)
	for path, want := range map[string]string{
		"/v1/completions": `{"error":{"message":"Unsupported Media Type: Content-Encoding \"gzip\" is not supported, send the body uncompressed","type":"Unsupported Media Type","param":null,"code":415}}`,
		"/tokenize":       `{"error":{"message":"Unsupported Media Type: Content-Encoding \"gzip\" is not supported, send the body uncompressed","type":"Unsupported Media Type","param":null,"code":415}}`,
		"/v1/messages":    `{"type":"error","error":{"type":"Unsupported Media Type","message":"Unsupported Media Type: Content-Encoding \"gzip\" is not supported, send the body uncompressed"}}`,
	} {
		a := r.post(path, "\x1f\x8b", "Content-Encoding", "gzip")
		if e := r.entry(); a.status != http.StatusUnsupportedMediaType || string(a.body) != want || e.Status != a.status {
			t.Errorf("%s: %d %s, logged as %d", path, a.status, a.body, e.Status)
		}
	}
	got := r.rec.askOutcomes()
	assert.True(t, got == "" && len(posted(r.D[0])) == 0, "asked: %q", got)
	if a := r.post("/v1/completions", `{"model":"m","prompt":"a","max_tokens":1}`, "Content-Encoding", "identity"); a.status != http.StatusOK {
		t.Errorf("identity: %d %s", a.status, a.body)
	}
}

// A client that sends its whole request before it reads sees why it was refused.
func TestAnswerToAnOversizedBody(t *testing.T) {
	t.Parallel()
	r := start(t, fakevllm.Plain, 0, 1, func(o *forward.Options) { o.MaxBody = 1000 })
	const size = 40 << 20
	for name, framing := range map[string]string{
		"of known length": fmt.Sprintf("Content-Length: %d\r\n\r\n", size),
		"in chunks":       fmt.Sprintf("Transfer-Encoding: chunked\r\n\r\n%x\r\n", size),
	} {
		c, in := r.sendRaw("POST /v1/completions HTTP/1.1\r\nHost: h\r\nContent-Type: application/json\r\n" + framing)
		for piece, sent := make([]byte, 64<<10), 0; sent < size; sent += len(piece) {
			if _, err := c.Write(piece); err != nil {
				t.Fatalf("%s: after %d bytes: %v", name, sent, err)
			}
		}
		if name == "in chunks" {
			_, _ = io.WriteString(c, "\r\n0\r\n\r\n")
		}
		resp, err := http.ReadResponse(in, nil)
		require.NoError(t, err, name)
		body, err := io.ReadAll(resp.Body)
		if resp.StatusCode != http.StatusRequestEntityTooLarge || err != nil || !resp.Close || !strings.Contains(string(body), "--max-body-bytes") {
			t.Errorf("%s: %s %s, closes %t, %v", name, resp.Status, body, resp.Close, err)
		}
	}
}
