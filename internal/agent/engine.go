package agent

import (
	"context"
	"maps"

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

// ranks has the engine ids of a Mooncake prefill engine. The zero value is for all other
// engines.
type ranks struct {
	ids map[string]string
	err error // why they are not known
}

// query queries the ids unless they are known. If fresh is true, the engine has restarted with new ids.
func (r *ranks) query(ctx context.Context, engineIDs func(context.Context) (map[string]string, error), fresh bool) {
	if fresh {
		r.ids = nil
	}
	if r.ids == nil {
		r.ids, r.err = engineIDs(ctx)
	}
}

// show adds the ids to a record, which is "starting" without them.
func (r *ranks) show(rec *instance.Record) {
	switch {
	case r.err != nil:
		rec.State, rec.Cause, rec.EngineIDs = instance.Starting, instance.CauseNoEngineIDs, nil
	case r.ids != nil:
		rec.EngineIDs = maps.Clone(r.ids)
	}
}
