package kvfollow

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strconv"

	"github.com/pdmesh/pdmesh/internal/engine/vllm"
	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/internal/kvcache/kvevents"
)

// maxRanks bounds the number of endpoints of an engine that the proxy connects to.
const maxRanks = 256

// maxAnswer bounds a response in bytes.
const maxAnswer = 256 << 10

// Sources returns a function for Options.Ask that queries engines with a client. Engines before vLLM 0.31
// lack the route: they have no sources, like engines that publish nothing.
func Sources(client *http.Client) func(context.Context, *instance.Instance) (map[int]kvevents.Publisher, error) {
	return func(ctx context.Context, in *instance.Instance) (map[int]kvevents.Publisher, error) {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, vllm.BaseURL(in)+"/kv_event_sources", nil)
		if err != nil {
			return nil, fmt.Errorf("ask for sources of KV events: %w", err)
		}
		resp, err := client.Do(req)
		if err != nil {
			return nil, fmt.Errorf("ask for sources of KV events: %w", err)
		}
		defer func() { _ = resp.Body.Close() }()
		if resp.StatusCode != http.StatusOK {
			return nil, nil
		}
		body, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
		if err != nil {
			return nil, fmt.Errorf("ask for sources of KV events: %w", err)
		}
		return parse(body)
	}
}

func parse(body []byte) (map[int]kvevents.Publisher, error) {
	var answer map[string]struct {
		Enabled   bool   `json:"enable_kv_cache_events"`
		Publisher string `json:"publisher"`
		instance.KVEvents
	}
	if err := json.Unmarshal(body, &answer); err != nil {
		return nil, fmt.Errorf("sources of KV events: %w", err)
	}
	found := make(map[string]instance.KVEvents, len(answer))
	for rank, s := range answer {
		if s.Enabled && s.Publisher == "zmq" {
			found[rank] = s.KVEvents
		}
	}
	return publishersOf(found), nil
}

// publishersOf returns the valid publishers of a record or of an engine's answer.
func publishersOf(by map[string]instance.KVEvents) map[int]kvevents.Publisher {
	out := make(map[int]kvevents.Publisher, len(by))
	for text, e := range by {
		rank, err := strconv.Atoi(text)
		if err != nil || rank < 0 || rank >= maxRanks || e.Endpoint == "" {
			continue
		}
		out[rank] = kvevents.Publisher{Endpoint: e.Endpoint, Replay: e.ReplayEndpoint, Topic: e.Topic}
	}
	return out
}
