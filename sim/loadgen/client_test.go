package loadgen_test

import (
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pdmesh/pdmesh/sim/loadgen"
	"github.com/pdmesh/pdmesh/sim/testkit/leak"
)

func TestMain(m *testing.M) { leak.Main(m) }

func text(s string) string {
	return fmt.Sprintf(`data: {"id":"cmpl-1","choices":[{"index":0,"text":%q,"logprobs":null,"finish_reason":null}]}`+"\n\n", s)
}

const (
	finish = `data: {"choices":[{"index":0,"text":"","finish_reason":"length"}]}` + "\n\n"
	usage  = `data: {"choices":[],"usage":{"prompt_tokens":7,"total_tokens":9,"completion_tokens":2}}` + "\n\n"
	done   = "data: [DONE]\n\n"
)

var want = loadgen.Expected{Text: []byte(" one two"), PromptTokens: 7, CompletionTokens: 2, FinishReason: "length"}

// serve answers every request with one scripted handler.
func serve(t *testing.T, h http.HandlerFunc) (*loadgen.Client, string) {
	t.Helper()
	srv := httptest.NewServer(h)
	c := loadgen.NewClient(4, http.Header{"X-Pd-Trace": {"1"}})
	t.Cleanup(func() {
		c.Close()
		srv.Close()
	})
	return c, srv.URL
}

func events(s string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream; charset=utf-8")
		w.Header().Set("X-PD-Prefill", "10.0.0.1:1")
		w.Header().Set("X-PD-Decode", "10.0.0.2:2")
		fmt.Fprint(w, s)
	}
}

func TestStream_Valid(t *testing.T) {
	t.Parallel()
	role := `data: {"choices":[{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":null}]}` + "\n\n"
	chat := func(s string) string {
		return fmt.Sprintf(`data: {"choices":[{"index":0,"delta":{"content":%q},"finish_reason":null}],"usage":null}`+"\n\n", s)
	}
	tests := []struct{ name, body string }{
		{"completions", text(" one") + text(" two") + finish + usage + done},
		{"chat", role + chat(" one") + chat(" two") + finish + usage + done},
		{"finish with the last text", text(" one") + strings.Replace(text(" two"), "null}", `"length"}`, 1) + usage + done},
		{"events that hold several tokens", text(" one two") + finish + usage + done},
		{"CRLF, comments, other fields", ": ping\r\n\r\nid: 4\r\n" + strings.ReplaceAll(text(" one")+text(" two")+finish+usage+done, "\n", "\r\n")},
		{"no space behind the colon", strings.ReplaceAll(text(" one")+text(" two")+finish+usage+done, "data: ", "data:")},
		{"usage in every event too", strings.ReplaceAll(text(" one"), "null}]", `null}],"usage":{"prompt_tokens":7,"completion_tokens":1}`) + text(" two") + finish + usage + done},
		{"an event larger than the reader", strings.Replace(text(" one"), `"logprobs":null`, `"logprobs":"`+strings.Repeat("x", 50<<10)+`"`, 1) + text(" two") + finish + usage + done},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			c, url := serve(t, events(tt.body))
			var got strings.Builder
			r := c.Stream(t.Context(), url, nil, []byte(`{}`), want, loadgen.Observer{Text: func(b []byte) { got.Write(b) }, ITL: new(loadgen.Histogram)})
			require.NoError(t, r.Err)
			assert.True(t, got.String() == " one two" && r.Tokens == 2, "text %q, %d tokens", got.String(), r.Tokens)
			assert.True(t, r.TTFT > 0 && r.Total >= r.TTFT, "TTFT %v, total %v", r.TTFT, r.Total)
			p, d := r.Header.Get("X-PD-Prefill"), r.Header.Get("X-PD-Decode")
			assert.True(t, p == "10.0.0.1:1" && d == "10.0.0.2:2", "served by %q and %q", p, d)
		})
	}
}

func TestStream_Invalid(t *testing.T) {
	t.Parallel()
	whole := text(" one") + text(" two") + finish + usage + done
	tests := []struct{ name, body, want string }{
		{"cut before the text is whole", text(" one") + finish + usage + done, "4 of 8 bytes"},
		{"no finish reason", text(" one") + text(" two") + usage + done, "finish_reason"},
		{"no usage", text(" one") + text(" two") + finish + done, "usage"},
		{"no DONE", text(" one") + text(" two") + finish + usage, "[DONE]"},
		{"empty", "", "8 of 8 bytes"},
		{"ends inside an event", strings.TrimSuffix(whole, "\n"), "the end of the last event"},
		{"ends inside a line", strings.TrimSuffix(whole, "]\n\n"), "[DONE]"},
		{"reordered", text(" two") + text(" one") + finish + usage + done, "instead of"},
		{"twice", text(" one") + text(" one") + text(" two") + finish + usage + done, "instead of"},
		{"too much", text(" one") + text(" two") + text(" three") + finish + usage + done, "instead of"},
		{"text after the end", text(" one") + finish + text(" two") + usage + done, "after the finish reason"},
		{"other finish reason", text(" one") + text(" two") + strings.Replace(finish, "length", "stop", 1) + usage + done, `"stop"`},
		{"two finish reasons", text(" one") + text(" two") + finish + finish + usage + done, "second one"},
		{"other count", text(" one") + text(" two") + finish + strings.Replace(usage, `"completion_tokens":2`, `"completion_tokens":3`, 1) + done, "7 + 3"},
		{"usage twice", text(" one") + text(" two") + finish + usage + usage + done, "usage twice"},
		{"an event after DONE", whole + usage, "after [DONE]"},
		{"two lines in an event", strings.Replace(whole, "\n\n", "\n", 1), "two data lines"},
		{"not JSON", "data: {\n\n", "not valid JSON"},
		{"trailing garbage", strings.Replace(whole, "}\n\n", "}x\n\n", 1), "not valid JSON"},
		{"an endless event", "data: " + strings.Repeat("x", 300<<10), "longer than"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			c, url := serve(t, events(tt.body))
			r := c.Stream(t.Context(), url, nil, []byte(`{}`), want, loadgen.Observer{})
			require.True(t, errors.Is(r.Err, loadgen.ErrWrong), "error %v, want ErrWrong", r.Err)
			require.Contains(t, r.Err.Error(), tt.want)
		})
	}
}

func TestStreamFailed(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name    string
		handler http.HandlerFunc
		want    string
	}{
		{"status", func(w http.ResponseWriter, _ *http.Request) {
			http.Error(w, `{"error":{"message":"no instance"}}`, http.StatusServiceUnavailable)
		}, "status 503"},
		{"redirect", func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, "/elsewhere", http.StatusFound) }, "status 302"},
		{"error event", events(text(" one") + `data: {"error":{"message":"engine died"}}` + "\n\n"), "engine died"},
		{"broken connection", func(w http.ResponseWriter, r *http.Request) {
			events(text(" one"))(w, r)
			if err := http.NewResponseController(w).Flush(); err != nil {
				return
			}
			panic(http.ErrAbortHandler)
		}, "broke after 4 of 8 bytes"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			c, url := serve(t, tt.handler)
			r := c.Stream(t.Context(), url, nil, []byte(`{}`), want, loadgen.Observer{})
			require.True(t, r.Err != nil && !errors.Is(r.Err, loadgen.ErrWrong),
				"error %v, want one that is not ErrWrong", r.Err)
			require.Contains(t, r.Err.Error(), tt.want)
		})
	}
	t.Run("content type", func(t *testing.T) {
		t.Parallel()
		c, url := serve(t, func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "hello") })
		r := c.Stream(t.Context(), url, nil, nil, want, loadgen.Observer{})
		assert.True(t, errors.Is(r.Err, loadgen.ErrWrong), "error %v, want ErrWrong", r.Err)
	})
	t.Run("no server", func(t *testing.T) {
		t.Parallel()
		c, url := serve(t, nil)
		r := c.Stream(t.Context(), strings.Replace(url, "127.0.0.1:", "127.0.0.1:1", 1), nil, nil, want, loadgen.Observer{})
		assert.Error(t, r.Err, "no error")
	})
}

func TestStreamTimes(t *testing.T) {
	t.Parallel()
	proceed := make(chan struct{})
	c, url := serve(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("X-PD-Trace") != "1" {
			http.Error(w, "the client's header is missing", http.StatusBadRequest)
			return
		}
		events(text(" one"))(w, r)
		if err := http.NewResponseController(w).Flush(); err != nil {
			return
		}
		<-proceed
		fmt.Fprint(w, text(" two")+finish+usage+done)
	})
	var itl loadgen.Histogram
	var first time.Time
	r := c.Stream(t.Context(), url, nil, []byte(`{}`), want, loadgen.Observer{ITL: &itl, Text: func([]byte) {
		if first.IsZero() {
			first = time.Now()
			close(proceed) // the first text came before the rest was sent
		}
	}})
	require.NoError(t, r.Err)
	assert.EqualValues(t, 1, itl.Count(), "pauses")
	assert.LessOrEqual(t, r.TTFT+itl.Max(), r.Total,
		"TTFT %v and pause %v are longer than the whole %v", r.TTFT, itl.Max(), r.Total)
}
