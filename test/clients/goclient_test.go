package clients_test

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/option"
	"github.com/openai/openai-go/v3/packages/ssestream"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pdmesh/pdmesh/sim/fakevllm"
)

// sent records the requests that an official client sent and the responses it received.
type sent struct {
	mu    sync.Mutex // guards calls
	calls []call
	// answered is called for each response before the client receives it.
	answered func(n, status int)
}

type call struct {
	method, path  string
	header        http.Header
	body          []byte
	status        int
	retryAfter    string
	shouldRetry   string
	answerRequest string // X-Request-Id of the answer
}

func (s *sent) all() []call {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]call(nil), s.calls...)
}

// goClient returns the official client with its default settings, including retries, unless opts
// change them.
func goClient(t *testing.T, url string, opts ...option.RequestOption) (openai.Client, *sent) {
	t.Helper()
	s := &sent{}
	transport := &http.Transport{}
	t.Cleanup(transport.CloseIdleConnections)
	watch := func(q *http.Request, next option.MiddlewareNext) (*http.Response, error) {
		c := call{method: q.Method, path: q.URL.EscapedPath(), header: q.Header.Clone()}
		if q.Body != nil {
			body, err := io.ReadAll(q.Body)
			if err != nil {
				return nil, err
			}
			c.body, q.Body = body, io.NopCloser(bytes.NewReader(body))
		}
		resp, err := next(q)
		if err == nil {
			c.status, c.retryAfter, c.shouldRetry = resp.StatusCode, resp.Header.Get("Retry-After"), resp.Header.Get("X-Should-Retry")
			c.answerRequest = resp.Header.Get("X-Request-Id")
		}
		s.mu.Lock()
		s.calls = append(s.calls, c)
		n := len(s.calls)
		s.mu.Unlock()
		if s.answered != nil {
			s.answered(n, c.status)
		}
		return resp, err
	}
	opts = append([]option.RequestOption{
		option.WithBaseURL(url + "/v1"), option.WithAPIKey("sk-of-a-client"),
		option.WithHTTPClient(&http.Client{Transport: transport}), option.WithMiddleware(watch),
	}, opts...)
	return openai.NewClient(opts...), s
}

func chatParams(content string, tokens int64) openai.ChatCompletionNewParams {
	return openai.ChatCompletionNewParams{
		Model: model, Messages: []openai.ChatCompletionMessageParamUnion{openai.UserMessage(content)}, MaxTokens: openai.Int(tokens),
	}
}

// accumulate reads a chat stream to its end.
func accumulate(t *testing.T, stream *ssestream.Stream[openai.ChatCompletionChunk]) (acc openai.ChatCompletionAccumulator, chunks []openai.ChatCompletionChunk) {
	t.Helper()
	defer stream.Close()
	for stream.Next() {
		chunk := stream.Current()
		if !acc.AddChunk(chunk) {
			t.Fatalf("a chunk does not fit those before: %s", chunk.RawJSON())
		}
		chunks = append(chunks, chunk)
	}
	require.NoError(t, stream.Err())
	return acc, chunks
}

// TestGoClientAnswers checks that whole responses and streams contain the text of the model, with the
// same usage, through prefill and decode.
func TestGoClientAnswers(t *testing.T) {
	t.Parallel()
	r := start(t, setup{})
	c, s := goClient(t, r.URL)
	const question, tokens = "tell me \"of\" the sea\n", 200
	wholeUsage := func(t *testing.T, u openai.CompletionUsage, want fakevllm.Answer) {
		t.Helper()
		if u.PromptTokens != int64(want.PromptTokens) || u.CompletionTokens != int64(len(want.Tokens)) ||
			u.TotalTokens != u.PromptTokens+u.CompletionTokens || !u.PromptTokensDetails.JSON.CachedTokens.Valid() {
			t.Errorf("usage %s, want %d and %d tokens", u.RawJSON(), want.PromptTokens, len(want.Tokens))
		}
	}
	t.Run("chat", func(t *testing.T) {
		params := chatParams(question, tokens)
		whole, err := c.Chat.Completions.New(t.Context(), params)
		require.NoError(t, err)
		want := expected(t, "/v1/chat/completions", last(s).body)[0]
		if got := whole.Choices[0]; got.Message.Content != want.Text || got.FinishReason != want.FinishReason {
			t.Errorf("got %q (%s), want %q (%s)", got.Message.Content, got.FinishReason, want.Text, want.FinishReason)
		}
		wholeUsage(t, whole.Usage, want)

		params.StreamOptions.IncludeUsage = openai.Bool(true)
		acc, chunks := accumulate(t, c.Chat.Completions.NewStreaming(t.Context(), params))
		if got := acc.Choices[0]; got.Message.Content != whole.Choices[0].Message.Content || got.FinishReason != want.FinishReason {
			t.Errorf("streamed %q (%s), in one piece %q", got.Message.Content, got.FinishReason, want.Text)
		}
		usage := chunks[len(chunks)-1]
		if len(usage.Choices) != 0 || !usage.JSON.Usage.Valid() {
			t.Errorf("the last chunk is %s, want one of usage without choices", usage.RawJSON())
		}
		wholeUsage(t, usage.Usage, want)

		params.StreamOptions = openai.ChatCompletionStreamOptionsParam{}
		acc, chunks = accumulate(t, c.Chat.Completions.NewStreaming(t.Context(), params))
		if final := chunks[len(chunks)-1]; acc.Choices[0].Message.Content != want.Text || final.Choices[0].FinishReason != want.FinishReason || final.JSON.Usage.Valid() {
			t.Errorf("without usage the stream ends with %s", final.RawJSON())
		}
	})
	t.Run("completions", func(t *testing.T) {
		params := openai.CompletionNewParams{
			Model: model, Prompt: openai.CompletionNewParamsPromptUnion{OfString: openai.String(question)}, MaxTokens: openai.Int(tokens),
		}
		whole, err := c.Completions.New(t.Context(), params)
		require.NoError(t, err)
		want := expected(t, "/v1/completions", last(s).body)[0]
		if got := whole.Choices[0]; got.Text != want.Text || string(got.FinishReason) != want.FinishReason {
			t.Errorf("got %q (%s), want %q", got.Text, got.FinishReason, want.Text)
		}
		wholeUsage(t, whole.Usage, want)
		params.StreamOptions.IncludeUsage = openai.Bool(true)
		stream := c.Completions.NewStreaming(t.Context(), params)
		defer stream.Close()
		text, usages := "", 0
		for stream.Next() {
			chunk := stream.Current()
			for _, choice := range chunk.Choices {
				text += choice.Text
			}
			if chunk.JSON.Usage.Valid() {
				usages++
				wholeUsage(t, chunk.Usage, want)
			}
		}
		if err := stream.Err(); err != nil || text != want.Text || usages != 1 {
			t.Errorf("streamed %q with %d usages, %v", text, usages, err)
		}
	})
	r.split()
	t.Run("several prompts and choices", func(t *testing.T) {
		for _, prompt := range []openai.CompletionNewParamsPromptUnion{
			{OfArrayOfStrings: []string{"once", "twice"}}, {OfArrayOfTokens: []int64{100, 200, 300}}, {OfArrayOfTokenArrays: [][]int64{{100}, {200, 300}}},
		} {
			whole, err := c.Completions.New(t.Context(), openai.CompletionNewParams{Model: model, Prompt: prompt, N: openai.Int(2), MaxTokens: openai.Int(5)})
			require.NoError(t, err)
			want := expected(t, "/v1/completions", last(s).body)
			require.Equal(t, len(want), len(whole.Choices), "choices")
			for i, choice := range whole.Choices {
				assert.True(t, choice.Text == want[i].Text && choice.Index == int64(i),
					"choice %d is %q, want %q", i, choice.Text, want[i].Text)
			}
		}
	})
	for _, leg := range legs(r.engines()) {
		assert.Equal(t, "OpenAI/Go "+linked(t), leg.Header.Get("User-Agent"), "User-Agent of a leg")
	}
	for _, q := range s.all() {
		assert.True(t, q.status == http.StatusOK && q.answerRequest != "" && q.header.Get("X-Stainless-Retry-Count") == "0",
			"%s: %d, id %q, retries %s", q.path, q.status, q.answerRequest, q.header.Get("X-Stainless-Retry-Count"))
	}
	r.strict()
}

func last(s *sent) call { a := s.all(); return a[len(a)-1] }

// TestGoClientTools checks that tools reach the engines byte for byte and that calls are returned.
func TestGoClientTools(t *testing.T) {
	t.Parallel()
	r := start(t, setup{prefills: 1, decodes: 1})
	c, s := goClient(t, r.URL)
	params := chatParams("what is the weather in <Paris> & Rome?", 400)
	params.Tools = []openai.ChatCompletionToolUnionParam{
		openai.ChatCompletionFunctionTool(openai.FunctionDefinitionParam{
			Name: "look", Description: openai.String("looks & tells <\u2028>"), Strict: openai.Bool(true),
			Parameters: openai.FunctionParameters{"type": "object", "properties": map[string]any{"text": map[string]any{"type": "string"}}},
		}),
		openai.ChatCompletionFunctionTool(openai.FunctionDefinitionParam{Name: "leap"}),
	}
	for _, tt := range []struct {
		name   string
		choice openai.ChatCompletionToolChoiceOptionUnionParam
		forced bool
	}{
		{"left out", openai.ChatCompletionToolChoiceOptionUnionParam{}, false},
		{"auto", openai.ChatCompletionToolChoiceOptionUnionParam{OfAuto: openai.String("auto")}, false},
		{"none", openai.ChatCompletionToolChoiceOptionUnionParam{OfAuto: openai.String("none")}, false},
		{"required", openai.ChatCompletionToolChoiceOptionUnionParam{OfAuto: openai.String("required")}, true},
		{"named", openai.ToolChoiceOptionFunctionToolChoice(openai.ChatCompletionNamedToolChoiceFunctionParam{Name: "leap"}), true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			params.ToolChoice = tt.choice
			for _, stream := range []bool{false, true} {
				r.forget()
				var got openai.ChatCompletion
				if stream {
					acc, _ := accumulate(t, c.Chat.Completions.NewStreaming(t.Context(), params))
					got = acc.ChatCompletion
				} else {
					whole, err := c.Chat.Completions.New(t.Context(), params)
					require.NoError(t, err)
					got = *whole
				}
				body := last(s).body
				want, choice := expected(t, "/v1/chat/completions", body)[0], got.Choices[0]
				switch {
				case !tt.forced:
					if choice.Message.Content != want.Text || len(choice.Message.ToolCalls) != 0 || choice.FinishReason != want.FinishReason {
						t.Errorf("stream=%v: got %s", stream, choice.RawJSON())
					}
				case len(choice.Message.ToolCalls) != 1:
					t.Errorf("stream=%v: %d calls: %s", stream, len(choice.Message.ToolCalls), got.RawJSON())
				default:
					f := choice.Message.ToolCalls[0].Function
					if f.Name != want.ToolName || f.Arguments != want.ToolArguments || choice.FinishReason != want.FinishReason || !json.Valid([]byte(f.Arguments)) {
						t.Errorf("stream=%v: call %s(%s), %s; want %s(%s), %s", stream, f.Name, f.Arguments, choice.FinishReason, want.ToolName, want.ToolArguments, want.FinishReason)
					}
				}
				for _, leg := range legs(r.engines()) {
					for _, field := range []string{"tools", "tool_choice", "messages"} {
						a, b := rawField(t, leg.Body, field), rawField(t, body, field)
						assert.Equal(t, b, a, "stream=%v: %s is %s at an engine, %s at the client", stream, field, a, b)
					}
				}
			}
		})
	}
	// The result of a call is sent back with the call.
	params.ToolChoice = openai.ChatCompletionToolChoiceOptionUnionParam{}
	calls := []openai.ChatCompletionMessageToolCallUnionParam{{OfFunction: &openai.ChatCompletionMessageFunctionToolCallParam{
		ID: "call-1", Function: openai.ChatCompletionMessageFunctionToolCallFunctionParam{Name: "look", Arguments: `{"text":"x"}`},
	}}}
	params.Messages = append(params.Messages,
		openai.ChatCompletionMessageParamUnion{OfAssistant: &openai.ChatCompletionAssistantMessageParam{ToolCalls: calls}},
		openai.ToolMessage("fine, 21 °C", "call-1"))
	whole, err := c.Chat.Completions.New(t.Context(), params)
	require.NoError(t, err)
	if want := expected(t, "/v1/chat/completions", last(s).body)[0]; whole.Choices[0].Message.Content != want.Text {
		t.Errorf("got %q, want %q", whole.Choices[0].Message.Content, want.Text)
	}
	r.strict()
}

// rawField returns the text of a top-level field, "" if it is absent.
func rawField(t *testing.T, body []byte, name string) string {
	t.Helper()
	var fields map[string]json.RawMessage
	require.NoError(t, json.Unmarshal(body, &fields))
	return string(fields[name])
}

// TestGoClientModels checks the model list and a single model, whose name contains a slash, with the
// fields that vLLM adds.
func TestGoClientModels(t *testing.T) {
	t.Parallel()
	r := start(t, setup{prefills: 1, decodes: 1, engine: func(o *fakevllm.Options) { o.Models = []string{model, "tuned"} }})
	c, s := goClient(t, r.URL)
	list, err := c.Models.List(t.Context())
	if err != nil || len(list.Data) != 2 || list.Data[0].ID != model || list.Data[1].ID != "tuned" || list.Data[0].OwnedBy != "vllm" {
		t.Fatalf("%v: %+v", err, list)
	}
	for _, id := range []string{model, "tuned"} {
		m, err := c.Models.Get(t.Context(), id)
		if err != nil {
			t.Fatalf("%s: %v (requested as %s)", id, err, last(s).path)
		}
		if m.ID != id || m.JSON.ExtraFields["root"].Raw() != `"`+model+`"` || m.JSON.ExtraFields["max_model_len"].Raw() != "4096" {
			t.Errorf("%s: %s", id, m.RawJSON())
		}
	}
}

// TestGoClientTranscribes checks that a file arrives as the client sends it to vLLM.
func TestGoClientTranscribes(t *testing.T) {
	t.Parallel()
	r := start(t, setup{engine: func(o *fakevllm.Options) { o.Transcription = true }})
	c, _ := goClient(t, r.URL)
	const sound = "RIFF\x00\xff\xfe\r\n\r\n--\r\n\x80" // looks like parts of a form
	text, err := c.Audio.Transcriptions.New(t.Context(), openai.AudioTranscriptionNewParams{
		Model: model, File: openai.File(strings.NewReader(sound), `our "best" ä.wav`, "audio/wav"),
	})
	require.NoError(t, err)
	want := strings.Join(fakevllm.ExpectedTranscription([]byte(sound), ""), "")
	assert.Equal(t, want, text.Text, "%+v", text)
}
