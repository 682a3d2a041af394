package agent

import (
	"encoding/json"
	"maps"
	"slices"

	"github.com/pdmesh/pdmesh/internal/instance"
)

// record is the base, the facts and the incarnation of the present life.
func (a *Agent) record(facts instance.Facts) instance.Record {
	rec := clone(a.o.Base)
	rec.V = instance.RecordVersion
	rec.Role, rec.Address = a.o.Key.Role, a.o.Key.Address
	rec.ID = a.life.id
	rec.State = instance.Ready
	rec.Source = "agent"
	rec.Models = fitModels(facts.Models)
	rec.MaxModelLen = facts.MaxModelLen
	rec.Version = facts.Version
	if rec.Version == "" && a.rec.ID == rec.ID {
		rec.Version = a.rec.Version // one missed /version is no news
	}
	started := a.life.since
	rec.StartedAt = &started
	return rec
}

// maxModelBytes leaves room for the rest of the record in its 16 KiB.
const maxModelBytes = 12 << 10

// fitModels keeps the models that fit into a record, in their order: with very
// many adapters a registration that names most of them beats none.
func fitModels(models []string) []string {
	size := 0
	for i, m := range models {
		quoted, err := json.Marshal(m) // escapes count
		if size += len(quoted) + 1; err != nil || size > maxModelBytes {
			return slices.Clone(models[:i])
		}
	}
	return slices.Clone(models)
}

func clone(rec instance.Record) instance.Record {
	rec.Models = slices.Clone(rec.Models)
	rec.Labels = maps.Clone(rec.Labels)
	rec.EngineIDs = maps.Clone(rec.EngineIDs)
	rec.Ports = maps.Clone(rec.Ports)
	return rec
}
