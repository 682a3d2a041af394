package doctor

import (
	"regexp"

	"github.com/pdmesh/pdmesh/internal/discovery/verify"
	"github.com/pdmesh/pdmesh/internal/instance"
)

// wrongModel matches the reports of agents and proxies about an engine with another model.
var wrongModel = regexp.MustCompile(`serves .+, not `)

// ofWrongModel returns the finding about an engine with the wrong model.
func ofWrongModel(subject, why string, commands ...string) Finding {
	return Finding{
		Severity: Error, Subject: subject, What: "it serves the wrong model, and gets no requests", Why: why,
		Cure:     "start the engine with the right model (vllm serve MODEL, or --served-model-name), or correct --model of the agent or the proxies",
		Commands: commands,
	}
}

// wrongModels reports the engines that proxies report, unless their reports are outdated.
func (x Proxies) wrongModels(members []*instance.Instance, r *report) {
	for i := range x {
		one := &x[i]
		for _, in := range members {
			if reason := one.Unverified[in.Key.String()]; wrongModel.MatchString(reason) && one.Applied >= in.ModRevision {
				r.add(ofWrongModel(in.Key.String(), one.name()+": "+reason, r.pdctl("get", in.Key.String())))
			}
		}
	}
}

// wrongModels reports the engines that agents report.
func (a *Agents) wrongModels(r *report) {
	for _, c := range a.claimants() {
		if wrongModel.MatchString(c.reason) {
			f := ofWrongModel(c.String(), "its agent "+c.where()+": "+c.reason)
			c.cured(&f, "status")
			r.add(f)
		}
	}
}

// wrongModels reports the engines whose models, queried from here, differ from their records.
func (m *Members) wrongModels(r *report) {
	for _, in := range m.all() {
		facts, ok := m.Models[in.Key]
		if !ok {
			continue
		}
		if want := missing(in, facts); want != "" {
			r.add(ofWrongModel(in.Key.String(), "asked from here it "+verify.WrongModel(facts.Models, want), r.pdctl("get", in.Key.String())))
		}
	}
}

// missing returns a model that the record lists and the engine does not serve, "" if there is none.
// Unless an agent maintains the record, LoRA adapters may have been unloaded since it was
// written: one model that the engine serves is enough.
func missing(in *instance.Instance, facts instance.Facts) (model string) {
	for _, m := range in.Record.Models {
		switch served := facts.Serves(m, false); {
		case served && !in.Maintained():
			return ""
		case !served && model == "":
			model = m
		}
	}
	return model
}
