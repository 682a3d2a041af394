package loadgen

import "encoding/json"

// chunk has the checked fields of one event of a stream.
type chunk struct {
	Choices []struct {
		Text  string // of completions
		Delta struct{ Content string }
		// FinishReason is empty while null.
		FinishReason string `json:"finish_reason"`
	}
	Usage *struct {
		PromptTokens     int `json:"prompt_tokens"`
		CompletionTokens int `json:"completion_tokens"`
		Details          struct {
			Cached int `json:"cached_tokens"`
		} `json:"prompt_tokens_details"`
	}
	Error any
}

// parse reads an event, and returns the text and the finish reason of all its choices.
func (k *chunk) parse(data []byte) (text, finish string, err error) {
	if err := json.Unmarshal(data, k); err != nil {
		return "", "", err
	}
	for i := range k.Choices {
		c := &k.Choices[i]
		text += c.Text + c.Delta.Content
		finish += c.FinishReason
	}
	return text, finish, nil
}
