package vllm

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"

	"github.com/pdmesh/pdmesh/internal/instance"
)

// trialPath completes text without a chat template, and needs no KV transfer params.
const trialPath = "/v1/completions"

// maxTrialBytes bounds the answer to a trial request.
const maxTrialBytes = 1 << 20

// Trial asks one data-parallel rank of a server to generate one token, and returns nil once it has. rank is
// -1 for a server with one rank. A status other than 200 is a StatusError. The deadline of ctx bounds the
// call, or else DefaultTimeout. The request has the key of the client and no KV transfer params: a prefill
// instance computes it like any other request and keeps no blocks.
func (c *Client) Trial(ctx context.Context, base, model, id string, rank int) error {
	body, _ := json.Marshal(struct { // cannot fail
		Model     string `json:"model,omitempty"`
		Prompt    []int  `json:"prompt"` // one token for every tokenizer; see RankLoad.TrialsSince
		MaxTokens int    `json:"max_tokens"`
		Stream    bool   `json:"stream"`
	}{model, []int{1}, 1, false})
	req, err := c.request(ctx, http.MethodPost, base, trialPath, bytes.NewReader(body), true)
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("X-Request-Id", id)
	if rank >= 0 {
		req.Header.Set("X-Data-Parallel-Rank", strconv.Itoa(rank))
	}
	// Client.Timeout is for calls that the API server answers itself.
	if err := c.do(req, base, callTimeout(ctx, 0), readTrial); err != nil {
		return fmt.Errorf("POST %s%s: %w", base, trialPath, err)
	}
	return nil
}

// readTrial returns an error if no token was generated. An engine that shuts down or is being paused ends
// requests with the finish reason abort.
func readTrial(r io.Reader) error {
	var answer struct {
		Choices []struct {
			FinishReason string `json:"finish_reason"`
		} `json:"choices"`
	}
	if err := json.NewDecoder(io.LimitReader(r, maxTrialBytes)).Decode(&answer); err != nil {
		return fmt.Errorf("%w: %w", ErrNotVLLM, err)
	}
	if len(answer.Choices) == 0 || answer.Choices[0].FinishReason == "abort" {
		return errors.New("no token was generated")
	}
	return nil
}

// Suspended returns instance.Sleeping or instance.Paused if the engine is suspended, else "". Servers have
// the routes only with VLLM_SERVER_DEV_MODE=1, /is_paused since 0.23. A server with neither returns a
// StatusError with code 404. Any other failure is returned, too: it is no evidence that the engine runs.
func (c *Client) Suspended(ctx context.Context, base string) (instance.View, error) {
	var is struct {
		Sleeping bool `json:"is_sleeping"`
		Paused   bool `json:"is_paused"`
	}
	asleep := c.getJSON(ctx, base, "/is_sleeping", &is)
	if asleep == nil && is.Sleeping {
		return instance.Sleeping, nil
	}
	if status, ok := errors.AsType[*StatusError](asleep); asleep != nil && (!ok || status.Code != http.StatusNotFound) {
		return "", asleep
	}
	err := c.getJSON(ctx, base, "/is_paused", &is)
	status, answered := errors.AsType[*StatusError](err)
	switch {
	case err == nil && is.Paused:
		return instance.Paused, nil
	case asleep == nil && answered && status.Code < 500:
		return "", nil // an older server has no /is_paused
	}
	return "", err
}
