package agent

import (
	"context"

	"github.com/pdmesh/pdmesh/internal/engine/vllm"
	"github.com/pdmesh/pdmesh/internal/instance"
)

// HTTPEngine is an Engine that is reached over HTTP.
type HTTPEngine struct {
	Client *vllm.Client
	Base   string // e.g. http://127.0.0.1:8100
}

// Probe queries /health and /v1/models, which must answer, and /version, which need not.
func (e *HTTPEngine) Probe(ctx context.Context) (instance.Facts, error) {
	if err := e.Client.Health(ctx, e.Base); err != nil {
		return instance.Facts{}, err
	}
	facts, err := e.Client.Models(ctx, e.Base)
	if err != nil {
		return instance.Facts{}, err
	}
	if v, err := e.Client.Version(ctx, e.Base); err == nil {
		facts.Version = v
	}
	return facts, nil
}

// Load reads /metrics.
func (e *HTTPEngine) Load(ctx context.Context) (vllm.Stats, error) {
	return e.Client.Stats(ctx, e.Base)
}
