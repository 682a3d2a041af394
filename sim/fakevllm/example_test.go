package fakevllm_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"

	"github.com/pdmesh/pdmesh/sim/fakevllm"
)

func Example() {
	s, err := fakevllm.Start(context.Background(), fakevllm.Options{})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer s.Close()
	body := `{"messages":[{"role":"user","content":"hi"}],"max_tokens":3}`
	req, _ := http.NewRequestWithContext(context.Background(), http.MethodPost, s.URL()+"/v1/chat/completions", strings.NewReader(body))
	req.Header.Set("Content-Type", "application/json")
	tr := &http.Transport{}
	defer tr.CloseIdleConnections()
	resp, err := tr.RoundTrip(req)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer func() { _ = resp.Body.Close() }()
	answer, _ := io.ReadAll(resp.Body)

	expected := fakevllm.ExpectedChat([]fakevllm.Message{{Role: "user", Content: "hi"}}, fakevllm.Sampling{MaxTokens: 3})
	fmt.Println(strings.Contains(string(answer), `"content":"`+expected.Text+`"`), expected.FinishReason)
	// Output: true length
}

func ExampleServer_Script() {
	s, err := fakevllm.Start(context.Background(), fakevllm.Options{})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer s.Close()
	// The second and third stream end by RST after five tokens; /health is down
	// until ClearFaults.
	err = s.Script(
		fakevllm.Fault{Kind: fakevllm.FaultReset, Tokens: 5, Nth: 2, Times: 2},
		fakevllm.Fault{Kind: fakevllm.FaultStatus, Path: "/health", Status: 503},
	)
	fmt.Println(err)
	// Output: <nil>
}

// A generation that was cut is continued from prompt and partial answer.
func ExampleChatPrompt() {
	talk := []fakevllm.Message{{Role: "user", Content: "hi"}}
	whole := fakevllm.ExpectedChat(talk, fakevllm.Sampling{MaxTokens: 10})
	part := fakevllm.ExpectedChat(talk, fakevllm.Sampling{MaxTokens: 4})
	prompt := fakevllm.ChatPrompt(append(talk, fakevllm.Message{Role: "assistant", Content: part.Text}), true)
	rest := fakevllm.ExpectedCompletion(prompt, fakevllm.Sampling{MaxTokens: 6})
	fmt.Println(part.Text+rest.Text == whole.Text)
	// Output: true
}
