package agent

import (
	"context"
	"maps"

	"github.com/pdmesh/pdmesh/internal/instance"
)

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
