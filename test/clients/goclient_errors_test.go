package clients_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/option"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pdmesh/pdmesh/sim/fakevllm"
	"github.com/pdmesh/pdmesh/sim/testkit"
	"github.com/pdmesh/pdmesh/test/harness"
)

// TestGoClientErrors checks that errors of the proxy and the engines arrive as the client's own error
// type, with all fields.
func TestGoClientErrors(t *testing.T) {
	t.Parallel()
	r := start(t, setup{prefills: 1, decodes: 1, proxyArgs: []string{"--max-body-bytes", "64KiB"}})
	c, s := goClient(t, r.URL)
	call := func(change func(*openai.ChatCompletionNewParams), opts ...option.RequestOption) error {
		params := chatParams("hi", 9)
		if change != nil {
			change(&params)
		}
		_, err := c.Chat.Completions.New(t.Context(), params, opts...)
		return err
	}
	for _, tt := range []struct {
		name   string
		err    func() error
		status int
		kind   string
		param  string
		says   string
	}{
		{"unknown model", func() error {
			return call(func(p *openai.ChatCompletionNewParams) { p.Model = "nobody/has-it" })
		}, 404, "NotFoundError", "model", "The model `nobody/has-it` does not exist."},
		{"unknown model of the list", func() error { _, err := c.Models.Get(t.Context(), "nobody/has-it"); return err },
			404, "NotFoundError", "model", "does not exist"},
		{"refused by the proxy", func() error {
			return call(func(p *openai.ChatCompletionNewParams) { p.MaxTokens = openai.Int(0) })
		}, 400, "BadRequestError", "max_tokens", "max_tokens must be at least 1, got 0."},
		{"refused by the engine", func() error {
			return call(func(p *openai.ChatCompletionNewParams) { p.Temperature = openai.Float(-1) })
		}, 400, "BadRequestError", "temperature", "temperature must be non-negative"},
		{"too long for the model", func() error {
			return call(func(p *openai.ChatCompletionNewParams) { p.MaxTokens = openai.Int(maxModelLen + 1) })
		}, 400, "BadRequestError", "max_tokens", "max_model_len"},
		{"of another type", func() error { return call(nil, option.WithJSONSet("max_tokens", "many")) },
			400, "Bad Request", "body.max_tokens", "valid integer"},
		{"too large", func() error {
			return call(func(p *openai.ChatCompletionNewParams) {
				p.Messages = []openai.ChatCompletionMessageParamUnion{openai.UserMessage(strings.Repeat("x", 70<<10))}
			})
		}, 413, "RequestEntityTooLargeError", "", "65536"},
		{"no such route", func() error { return c.Get(t.Context(), "fine_tuning/jobs", nil, nil) },
			404, "", "", ""}, // {"detail":"Not Found"}, as in vLLM
	} {
		t.Run(tt.name, func(t *testing.T) {
			before := len(s.all())
			err := tt.err()
			var e *openai.Error
			require.True(t, errors.As(err, &e), "%T: %v", err, err)
			if e.StatusCode != tt.status || e.Type != tt.kind || e.Param != tt.param || !strings.Contains(e.Message, tt.says) {
				t.Errorf("%d %s param %q: %s", e.StatusCode, e.Type, e.Param, e.RawJSON())
			}
			// The code is a number, as in vLLM; the client keeps its text.
			if tt.kind != "" && e.JSON.Code.Raw() != fmt.Sprint(tt.status) {
				t.Errorf("code %s", e.JSON.Code.Raw())
			}
			assert.Equal(t, "application/json", e.Response.Header.Get("Content-Type"), "header %v", e.Response.Header)
			assert.Equal(t, 1, len(s.all())-before, "attempts of a request that cannot succeed")
		})
	}
	t.Run("in the stream, before it", func(t *testing.T) {
		params := chatParams("hi", 9)
		params.Model = "nobody/has-it"
		stream := c.Chat.Completions.NewStreaming(t.Context(), params)
		defer stream.Close()
		var e *openai.Error
		assert.True(t, !stream.Next() && errors.As(stream.Err(), &e) && e.StatusCode == http.StatusNotFound,
			"%v", stream.Err())
	})
	r.strict()
}

// TestGoClientBrokenStream checks that a response that is cut after its first text is an error for the
// client, never a short response.
func TestGoClientBrokenStream(t *testing.T) {
	t.Parallel()
	for _, kind := range []fakevllm.Kind{fakevllm.FaultReset, fakevllm.FaultClose, fakevllm.FaultErrorEvent} {
		t.Run(string(kind), func(t *testing.T) {
			t.Parallel()
			r := start(t, setup{prefills: 1, decodes: 1})
			c, s := goClient(t, r.URL)
			r.script(r.D, fakevllm.Fault{Kind: kind, At: fakevllm.AfterTokens, Tokens: 5})
			stream := c.Chat.Completions.NewStreaming(t.Context(), chatParams("hi", 50))
			defer stream.Close()
			chunks := 0
			for stream.Next() {
				chunks++
			}
			assert.True(t, stream.Err() != nil && chunks >= 5, "after %d chunks: %v", chunks, stream.Err())
			assert.Equal(t, 1, len(s.all()), "tries")
			t.Logf("error of the client: %v", stream.Err())
			r.strict()
		})
	}
}

// TestGoClientAborts checks that a client that disconnects in the middle stops its engine, and that
// nothing remains of the request.
func TestGoClientAborts(t *testing.T) {
	t.Parallel()
	r := start(t, setup{prefills: 1, decodes: 1, engine: func(o *fakevllm.Options) {
		if o.Role == fakevllm.RoleDecode {
			o.ITL = 5 * time.Millisecond
		}
	}})
	c, s := goClient(t, r.URL)
	const times = 3
	for range times {
		ctx, cancel := context.WithCancel(t.Context())
		params := chatParams("talk for long", 4000)
		stream := c.Chat.Completions.NewStreaming(ctx, params, option.WithJSONSet("ignore_eos", true))
		for range 5 {
			if !stream.Next() {
				t.Fatal(stream.Err())
			}
		}
		cancel()
		for stream.Next() { // events that were read ahead
		}
		if err := stream.Err(); !errors.Is(err, context.Canceled) {
			t.Errorf("%v", err)
		}
		stream.Close()
	}
	// A client that waits for a whole response disconnects while the engine computes it.
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	r.forget()
	ended := make(chan error, 1)
	go func() {
		_, err := c.Chat.Completions.New(ctx, chatParams("talk for long", 4000), option.WithJSONSet("ignore_eos", true))
		ended <- err
	}()
	testkit.Eventually(t, soon, func() error {
		if len(legs(r.D)) == 0 {
			return errNotYet
		}
		return nil
	})
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
	testkit.EventuallyEqual(t, soon, func() int64 { return sum(r.D, aborted) }, times+1, "requests aborted")
	r.strict()
	assert.Equal(t, times+1, len(s.all()), "requests: cancelled requests must not be retried")
	testkit.Eventually(t, soon, func() error {
		if n := harness.Metric(t, r.URL, "pd_requests_total", `outcome="client_gone"`, `code="499"`); n != times+1 {
			return fmt.Errorf("%v requests counted as cancelled by their client", n)
		}
		return nil
	})
	assert.EqualValues(t, 0, sum(r.P, aborted), "prefills aborted")
}

// TestGoClientRetries checks that faults that the fleet can hide are hidden, and that others are
// reported in the way that the client's own retries understand.
func TestGoClientRetries(t *testing.T) {
	t.Parallel()
	t.Run("one engine of a role fails", func(t *testing.T) {
		t.Parallel()
		for _, status := range []int{408, 429, 500, 503} {
			t.Run(fmt.Sprint(status), func(t *testing.T) {
				t.Parallel()
				r := start(t, setup{})
				c, s := goClient(t, r.URL)
				r.script([]*fakevllm.Server{r.P[0], r.D[0]}, fakevllm.Fault{Kind: fakevllm.FaultStatus, Status: status})
				for range 4 {
					r.ask(t, c, s)
				}
				assert.Equal(t, 4, len(s.all()), "tries of 4 requests: the client saw a fault")
			})
		}
	})
	t.Run("all engines of a role fail once", func(t *testing.T) {
		t.Parallel()
		for _, tt := range []struct {
			status int
			header map[string]string
		}{{409, nil}, {429, map[string]string{"Retry-After": "1"}}, {429, map[string]string{"Retry-After-Ms": "20"}}, {503, map[string]string{"Retry-After": "1"}}, {500, nil}} {
			t.Run(fmt.Sprint(tt.status, tt.header), func(t *testing.T) {
				t.Parallel()
				r := start(t, setup{prefills: 1, decodes: 1})
				c, s := goClient(t, r.URL)
				// The only instance is tried twice within one request, except for 409, which the client handles. After
				// a 500, which may have taken the KV transfer, it is tried once more, decode-only.
				times := 2
				switch tt.status {
				case 409:
					times = 1
				case 500:
					times = 3
				}
				r.script(r.D, fakevllm.Fault{Kind: fakevllm.FaultStatus, Status: tt.status, Times: times, Header: tt.header})
				r.ask(t, c, s)
				calls := s.all()
				if len(calls) != 2 || calls[0].status != tt.status || calls[1].header.Get("X-Stainless-Retry-Count") != "1" {
					t.Errorf("%d tries, the first answered %d", len(calls), calls[0].status)
				}
				want := tt.header["Retry-After"]
				assert.Equal(t, want, calls[0].retryAfter, "Retry-After %q, the engine sent %q", calls[0].retryAfter, want)
			})
		}
	})
	t.Run("a role that is missing appears", func(t *testing.T) {
		t.Parallel()
		r := start(t, setup{prefills: 1, decodes: -1})
		late := start(t, setup{prefills: -1, decodes: 1}) // its engine is added to r
		c, s := goClient(t, r.URL, option.WithMaxRetries(10))
		s.answered = func(n, status int) {
			if n == 2 && status == http.StatusServiceUnavailable {
				harness.Add(t, r.URL, adminKey, "decode", late.D[0].Address())
			}
		}
		params := chatParams("is anybody there", 20)
		whole, err := c.Chat.Completions.New(t.Context(), params)
		require.NoError(t, err)
		want := expected(t, "/v1/chat/completions", last(s).body)[0]
		assert.Equal(t, want.Text, whole.Choices[0].Message.Content)
		calls := s.all()
		for _, q := range calls[:len(calls)-1] {
			assert.True(t, q.status == http.StatusServiceUnavailable && q.retryAfter == "1",
				"%d, Retry-After %q", q.status, q.retryAfter)
		}
		assert.GreaterOrEqual(t, len(calls), 3, "%d tries: the role was never missing", len(calls))
	})
	t.Run("a role stays away", func(t *testing.T) {
		t.Parallel()
		r := start(t, setup{prefills: 1, decodes: -1})
		c, s := goClient(t, r.URL, option.WithMaxRetries(1))
		_, err := c.Chat.Completions.New(t.Context(), chatParams("hello", 5))
		var e *openai.Error
		if !errors.As(err, &e) || e.StatusCode != http.StatusServiceUnavailable || e.Type != "ServiceUnavailableError" ||
			!strings.Contains(e.Message, "no decode instance is available") || len(s.all()) != 2 {
			t.Errorf("after %d tries: %v %+v", len(s.all()), err, e)
		}
	})
	t.Run("the proxy is not there", func(t *testing.T) {
		t.Parallel()
		r := start(t, setup{prefills: 1, decodes: 1})
		require.NoError(t, r.proxy.Kill())
		c, s := goClient(t, r.URL, option.WithMaxRetries(1))
		if _, err := c.Chat.Completions.New(t.Context(), chatParams("hello", 5)); err == nil || len(s.all()) != 2 {
			t.Errorf("after %d tries: %v", len(s.all()), err)
		}
	})
}

// ask sends one chat request and checks its response.
func (r *rig) ask(t *testing.T, c openai.Client, s *sent) {
	t.Helper()
	whole, err := c.Chat.Completions.New(t.Context(), chatParams("hello", 12))
	require.NoError(t, err)
	want := expected(t, "/v1/chat/completions", last(s).body)[0]
	assert.Equal(t, want.Text, whole.Choices[0].Message.Content)
}

// TestGoClientKeys checks that a proxy with client keys rejects all other clients, and that the engines
// get their own key.
func TestGoClientKeys(t *testing.T) {
	t.Parallel()
	r := start(t, setup{
		prefills: 1, decodes: 1, proxyArgs: []string{"--api-key", "sk-a", "sk-b", "--engine-api-key", "engines"},
		engine: func(o *fakevllm.Options) { o.APIKey = "engines" },
	})
	for _, key := range []string{"sk-a", "sk-b"} {
		c, s := goClient(t, r.URL, option.WithAPIKey(key))
		r.ask(t, c, s)
		if list, err := c.Models.List(t.Context()); err != nil || len(list.Data) != 1 {
			t.Errorf("%s: %v %+v", key, err, list)
		}
	}
	for _, key := range []string{"sk-c", "engines"} {
		c, s := goClient(t, r.URL, option.WithAPIKey(key))
		_, err := c.Chat.Completions.New(t.Context(), chatParams("hello", 5))
		var e *openai.Error
		if !errors.As(err, &e) || e.StatusCode != http.StatusUnauthorized || e.Type != "AuthenticationError" || len(s.all()) != 1 {
			t.Errorf("%s: %v after %d tries", key, err, len(s.all()))
		}
	}
	for _, q := range legs(r.engines()) {
		assert.Equal(t, "Bearer engines", q.Header.Get("Authorization"), "Authorization of an engine")
		assert.True(t, json.Valid(q.Body) && !strings.Contains(fmt.Sprint(q.Header), "sk-a"),
			"a client's key reached an engine: %v", q.Header)
	}
	r.strict()
}
