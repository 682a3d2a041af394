package agent

import (
	"context"
	"maps"

	"github.com/pdmesh/pdmesh/internal/instance"
)

// ranks are the engine ids of a Mooncake prefill engine in its present life. The
// zero value is that of any other engine.
type ranks struct {
	ids map[string]string
	err error // why they are not known
}

// ask asks for the ids unless they are known of this life.
func (r *ranks) ask(ctx context.Context, engineIDs func(context.Context) (map[string]string, error), fresh bool) {
	if fresh {
		r.ids = nil
	}
	if r.ids == nil {
		r.ids, r.err = engineIDs(ctx)
	}
}

// show puts the ids into a record; without them the instance is not ready.
func (r *ranks) show(rec *instance.Record) {
	switch {
	case r.err != nil:
		rec.State, rec.EngineIDs = instance.Starting, nil
	case r.ids != nil:
		rec.EngineIDs = maps.Clone(r.ids)
	}
}

// showStarting says why the instance is not ready, once per reason.
func (a *Agent) showStarting() { a.showReason(a.ranks.err, "engine answers, but is not ready: ") }
