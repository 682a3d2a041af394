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
	"strings"
	"time"

	"github.com/pdmesh/pdmesh/internal/instance"
)

// trialPath completes text without a chat template, and needs no KV transfer params.
const trialPath = "/v1/completions"

// maxTrialBytes bounds the answer to a trial request.
const maxTrialBytes = 1 << 20

// Trial asks one data-parallel rank of a server to generate one token, and returns nil once it
// has. rank is -1 for a server with one rank. A status other than 200 is a StatusError. The deadline of ctx bounds it; without one DefaultTimeout does. The request has the key of the client, and no KV
// transfer params: a prefill instance computes it like any other request and keeps no blocks.
func (c *Client) Trial(ctx context.Context, base, model, id string, rank int) error {
	body, err := json.Marshal(struct {
		Model     string `json:"model,omitempty"`
		Prompt    string `json:"prompt"`
		MaxTokens int    `json:"max_tokens"`
		Stream    bool   `json:"stream"`
	}{model, "a", 1, false})
	if err != nil {
		return err
	}
	timeout := DefaultTimeout // Client.Timeout is for calls that the API server answers itself
	if deadline, ok := ctx.Deadline(); ok {
		timeout = time.Until(deadline)
	}
	cctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	u, err := endpoint(base, trialPath)
	if err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(cctx, http.MethodPost, u, bytes.NewReader(body))
	if err != nil {
		return fmt.Errorf("%w %q", ErrBase, instance.Printable(base, 80))
	}
	req.Header.Set(instance.ProbeHeader, "1")
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("X-Request-Id", id)
	if rank >= 0 {
		req.Header.Set("X-Data-Parallel-Rank", strconv.Itoa(rank))
	}
	if c.APIKey != "" {
		req.Header.Set("Authorization", "Bearer "+c.APIKey)
	}
	if err := c.sendTrial(req); err != nil {
		return fmt.Errorf("POST %s%s: %w", base, trialPath, explain(ctx, cctx, base, timeout, err))
	}
	return nil
}

// sendTrial sends a trial request and reads its answer.
func (c *Client) sendTrial(req *http.Request) error {
	resp, err := c.client().Do(req)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(io.LimitReader(resp.Body, 512))
		return &StatusError{Code: resp.StatusCode, Text: instance.Printable(strings.TrimSpace(string(text)), 120), key: c.APIKey != ""}
	}
	return readTrial(resp.Body)
}

// readTrial reports whether the answer is complete. An engine that shuts down or is being paused
// ends requests with the finish reason abort.
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

// Suspended returns instance.Sleeping or instance.Paused if the engine is, else "". Servers have
// the routes only with VLLM_SERVER_DEV_MODE=1, /is_paused since 0.23; a server with neither
// returns a StatusError with code 404.
func (c *Client) Suspended(ctx context.Context, base string) (instance.View, error) {
	var is struct {
		Sleeping bool `json:"is_sleeping"`
		Paused   bool `json:"is_paused"`
	}
	asleep := c.getJSON(ctx, base, "/is_sleeping", false, maxSmallBytes, &is)
	if asleep == nil && is.Sleeping {
		return instance.Sleeping, nil
	}
	err := c.getJSON(ctx, base, "/is_paused", false, maxSmallBytes, &is)
	switch {
	case err == nil && is.Paused:
		return instance.Paused, nil
	case asleep == nil:
		return "", nil // an older server has no /is_paused
	}
	return "", err
}
