package fakevllm_test

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pdmesh/pdmesh/sim/fakevllm"
	"github.com/pdmesh/pdmesh/sim/testkit"
	"github.com/pdmesh/pdmesh/sim/testkit/leak"
)

func TestMain(m *testing.M) { leak.Main(m) }

// client returns an HTTP client whose connections end with the test.
func client(t *testing.T) *http.Client {
	t.Helper()
	tr := &http.Transport{DisableCompression: true}
	t.Cleanup(tr.CloseIdleConnections)
	return &http.Client{Transport: tr, Timeout: time.Minute}
}

type reply struct {
	status int
	header http.Header
	body   string
	err    error // of reading the body
}

// post sends JSON with an X-Request-Id ("" for none) and further headers, given as names and values.
func post(t *testing.T, c *http.Client, url, id, body string, header ...string) reply {
	t.Helper()
	return do(t, c, jsonRequest(t, url, id, body, header...))
}

// try posts a completion that may crash the engine; the status is then 0.
func try(t *testing.T, s *fakevllm.Server, id, body string) (status int, answer string) {
	t.Helper()
	resp, err := client(t).Do(jsonRequest(t, s.URL()+"/v1/completions", id, body))
	if err != nil {
		return 0, err.Error()
	}
	defer func() { _ = resp.Body.Close() }()
	b, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	return resp.StatusCode, string(b)
}

func jsonRequest(t *testing.T, url, id, body string, header ...string) *http.Request {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url, strings.NewReader(body))
	require.NoError(t, err)
	req.Header.Set("Content-Type", "application/json")
	if id != "" {
		req.Header.Set("X-Request-Id", id)
	}
	for i := 0; i+1 < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	return req
}

func do(t *testing.T, c *http.Client, req *http.Request) reply {
	t.Helper()
	resp, err := c.Do(req)
	require.NoError(t, err, "%s %s", req.Method, req.URL)
	defer func() { _ = resp.Body.Close() }()
	b, err := io.ReadAll(resp.Body)
	return reply{status: resp.StatusCode, header: resp.Header, body: string(b), err: err}
}

func get(t *testing.T, c *http.Client, url string) reply {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	require.NoError(t, err)
	return do(t, c, req)
}

// eventually polls until cond is satisfied.
func eventually(t *testing.T, cond func() error) {
	t.Helper()
	testkit.Eventually(t, time.Minute, cond)
}

// want returns an error if got differs.
func want(what string, got, want int64) error {
	if got != want {
		return fmt.Errorf("%s is %d, not %d", what, got, want)
	}
	return nil
}

type toolCall struct {
	ID       string `json:"id"`
	Function struct {
		Name      string `json:"name"`
		Arguments string `json:"arguments"`
	} `json:"function"`
}

// chunk is an event of either route.
type chunk struct {
	ID      string `json:"id"`
	Object  string `json:"object"`
	Choices []struct {
		Index int `json:"index"`
		Delta struct {
			Role      string     `json:"role"`
			Content   string     `json:"content"`
			ToolCalls []toolCall `json:"tool_calls"`
		} `json:"delta"`
		Text         string          `json:"text"`
		FinishReason string          `json:"finish_reason"`
		StopReason   any             `json:"stop_reason"`
		Logprobs     json.RawMessage `json:"logprobs"`
		TokenIDs     []int           `json:"token_ids"`
	} `json:"choices"`
	Usage *usage          `json:"usage"`
	Error json.RawMessage `json:"error"`
}

type usage struct {
	Prompt     int `json:"prompt_tokens"`
	Total      int `json:"total_tokens"`
	Completion int `json:"completion_tokens"`
	Details    *struct {
		Cached int `json:"cached_tokens"`
	} `json:"prompt_tokens_details"`
}

// events splits an event stream. Every event must be JSON, except the last one, [DONE].
func events(t *testing.T, body string) []chunk {
	t.Helper()
	parts := strings.Split(body, "\n\n")
	require.True(t, len(parts) >= 2 && parts[len(parts)-1] == "" && parts[len(parts)-2] == "data: [DONE]",
		"the stream does not end in [DONE]: %q", body)
	var list []chunk
	for _, part := range parts[:len(parts)-2] {
		data, ok := strings.CutPrefix(part, "data: ")
		require.True(t, ok, "no data line: %q", part)
		var c chunk
		require.NoError(t, json.Unmarshal([]byte(data), &c), "event %q", data)
		list = append(list, c)
	}
	return list
}

// text joins the pieces of one choice and returns its last finish reason.
func text(list []chunk, index int) (s, finish string) {
	for _, c := range list {
		for _, choice := range c.Choices {
			if choice.Index == index {
				s += choice.Delta.Content + choice.Text
				finish += choice.FinishReason
			}
		}
	}
	return s, finish
}

type response struct {
	ID      string `json:"id"`
	Object  string `json:"object"`
	Model   string `json:"model"`
	Choices []struct {
		Index   int    `json:"index"`
		Text    string `json:"text"`
		Message struct {
			Role      string     `json:"role"`
			Content   string     `json:"content"`
			ToolCalls []toolCall `json:"tool_calls"`
		} `json:"message"`
		FinishReason string          `json:"finish_reason"`
		StopReason   any             `json:"stop_reason"`
		Logprobs     json.RawMessage `json:"logprobs"`
		TokenIDs     []int           `json:"token_ids"`
	} `json:"choices"`
	Usage usage           `json:"usage"`
	KV    json.RawMessage `json:"kv_transfer_params"`
}

func decode(t *testing.T, r reply) response {
	t.Helper()
	require.True(t, r.status == http.StatusOK && r.err == nil, "status %d, error %v: %s", r.status, r.err, r.body)
	var out response
	require.NoError(t, json.Unmarshal([]byte(r.body), &out), r.body)
	return out
}

// raw is a client that exposes the bytes and the end of its connection.
type raw struct {
	conn net.Conn
	in   *bufio.Reader
}

func dialRaw(t *testing.T, s *fakevllm.Server) *raw {
	t.Helper()
	conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", s.Address())
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	require.NoError(t, conn.SetDeadline(time.Now().Add(time.Minute)))
	return &raw{conn: conn, in: bufio.NewReader(conn)}
}

func (r *raw) send(t *testing.T, path, id, body string) {
	t.Helper()
	var b bytes.Buffer
	fmt.Fprintf(&b, "POST %s HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nX-Request-Id: %s\r\nContent-Length: %d\r\n\r\n%s", path, id, len(body), body)
	if _, err := r.conn.Write(b.Bytes()); err != nil {
		t.Fatal(err)
	}
}

// until reads up to and including a mark.
func (r *raw) until(t *testing.T, mark string) string {
	t.Helper()
	var b strings.Builder
	for !strings.HasSuffix(b.String(), mark) {
		c, err := r.in.ReadByte()
		if err != nil {
			t.Fatalf("before %q: %v after %q", mark, err, b.String())
		}
		b.WriteByte(c)
	}
	return b.String()
}

// rest reads until the connection ends. The error is nil if it ends with FIN.
func (r *raw) rest() (string, error) {
	b, err := io.ReadAll(r.in)
	return string(b), err
}
