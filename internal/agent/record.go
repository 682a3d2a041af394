package agent

import (
	"cmp"
	"maps"
	"slices"

	"github.com/sirupsen/logrus"

	"github.com/pdmesh/pdmesh/internal/instance"
)

// record returns the record from the base, the facts and the incarnation.
func (a *Agent) record(facts instance.Facts) instance.Record {
	rec := clone(a.o.Base)
	rec.V = instance.RecordVersion
	rec.Address = a.o.Key.Address
	if rec.Role = a.o.Key.Role; rec.Role == instance.Both {
		rec.Role = "" // each of its keys has one role
	}
	rec.ID = a.incarnation.id
	rec.State = instance.Ready
	rec.Source = instance.SourceAgent
	rec.Models, rec.ModelsTruncated = slices.Clone(facts.Models), facts.ModelsTruncated
	rec.MaxModelLen = facts.MaxModelLen
	rec.Version = facts.Version
	if rec.Version == "" && a.status.Record.ID == rec.ID {
		rec.Version = a.status.Record.Version // /version failed once
	}
	rec.DPSize, rec.Transfer = a.reportedOrLast(rec, facts)
	if rec.Connector == "" && rec.Transfer == instance.TransferNIXL {
		rec.Connector = nixl
	}
	a.ranks.show(&rec)
	rec.StartedAt = new(a.incarnation.since)
	rec.FitModels()
	return rec
}

// nixl is the connector of engines that transfer by NIXL.
const nixl = "nixl"

// reportedOrLast returns the ranks and the transfer from the engine's /metrics, or those of the last
// record if they are missing.
func (a *Agent) reportedOrLast(rec instance.Record, facts instance.Facts) (ranks int, transfer string) {
	same := a.status.Record.ID == rec.ID
	switch ranks = rec.DPSize; {
	case facts.DPSize > 1, facts.DPSize == 1 && ranks > 1:
		ranks = facts.DPSize
	case facts.DPSize == 0 && same:
		ranks = a.status.Record.DPSize
	}
	if transfer = cmp.Or(rec.Transfer, facts.Transfer); same {
		transfer = cmp.Or(transfer, a.status.Record.Transfer)
	}
	return ranks, transfer
}

// logWarnings logs warnings about a record that the previous one did not have.
func logWarnings(log logrus.FieldLogger, was, is instance.Record) {
	warning := func(rec instance.Record) string { return (&instance.Instance{Record: rec}).Warning("") }
	if text := warning(is); text != "" && text != warning(was) {
		log.Warn(text)
	}
	if is.DPSize > 1 && is.DPSize != was.DPSize {
		log.Infof("engine has %d data-parallel ranks; proxies choose among them", is.DPSize)
	}
}

func clone(rec instance.Record) instance.Record {
	rec.Models = slices.Clone(rec.Models)
	rec.Labels = maps.Clone(rec.Labels)
	rec.EngineIDs = maps.Clone(rec.EngineIDs)
	rec.Ports = maps.Clone(rec.Ports)
	rec.KVEvents = maps.Clone(rec.KVEvents)
	return rec
}
