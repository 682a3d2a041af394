package forward_test

import (
	"errors"
	"net/http"
	"testing"

	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/option"

	"github.com/pdmesh/pdmesh/sim/fakevllm"
)

// The official client library works unmodified: streams, whole answers, errors.
func TestOfficialClient(t *testing.T) {
	t.Parallel()
	r := start(t, fakevllm.NIXL, 2, 2, nil)
	httpClient := &http.Client{Transport: &http.Transport{}}
	t.Cleanup(httpClient.CloseIdleConnections)
	c := openai.NewClient(option.WithBaseURL(r.URL+"/v1"), option.WithAPIKey("k"), option.WithHTTPClient(httpClient), option.WithMaxRetries(0))
	params := openai.ChatCompletionNewParams{
		Model: model, Messages: []openai.ChatCompletionMessageParamUnion{openai.UserMessage("hello")}, MaxTokens: openai.Int(9),
		StreamOptions: openai.ChatCompletionStreamOptionsParam{IncludeUsage: openai.Bool(true)},
	}
	want := fakevllm.ExpectedChat([]fakevllm.Message{{Role: "user", Content: "hello"}}, fakevllm.Sampling{MaxTokens: 9})
	script(t, r.D[0], fakevllm.Fault{Kind: fakevllm.FaultErrorEvent, Times: 1}) // which the client must not notice
	stream := c.Chat.Completions.NewStreaming(t.Context(), params)
	acc := openai.ChatCompletionAccumulator{}
	for stream.Next() {
		acc.AddChunk(stream.Current())
	}
	if err := stream.Err(); err != nil || acc.Choices[0].Message.Content != want.Text || acc.Usage.CompletionTokens != int64(len(want.Tokens)) {
		t.Fatalf("stream: %v, %+v, want %q", err, acc.ChatCompletion, want.Text)
	}
	params.StreamOptions = openai.ChatCompletionStreamOptionsParam{}
	whole, err := c.Chat.Completions.New(t.Context(), params)
	if err != nil || whole.Choices[0].Message.Content != want.Text {
		t.Fatalf("whole: %v, %+v", err, whole)
	}
	params.Model = "unserved-model"
	_, err = c.Chat.Completions.New(t.Context(), params)
	var e *openai.Error
	if !errors.As(err, &e) || e.StatusCode != http.StatusNotFound || e.Type != "NotFoundError" {
		t.Fatalf("unknown model: %v", err)
	}
	models, err := c.Models.List(t.Context())
	if err != nil || len(models.Data) != 1 || models.Data[0].ID != model {
		t.Fatalf("models: %v, %+v", err, models)
	}
}
