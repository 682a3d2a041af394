package doctor

import (
	"cmp"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/pdmesh/pdmesh/internal/instance"
)

// wrongModel matches what agents and proxies say of an engine with another model.
var wrongModel = regexp.MustCompile(`serves .+, not `)

// ofWrongModel is the finding about an engine that serves another model than it should.
func ofWrongModel(subject, why string, commands ...string) Finding {
	return Finding{
		Severity: Error, Subject: subject, What: "it serves the wrong model, and gets no requests", Why: why,
		Cure:     "start the engine with the right model (vllm serve MODEL, or --served-model-name), or correct --model of the agent or the proxies",
		Commands: commands,
	}
}

// wrongModels are those that proxies tell of. A proxy may tell of what is there no more.
func (x Proxies) wrongModels(members []*instance.Instance, r *report) {
	for i := range x {
		one := &x[i]
		for _, in := range members {
			if reason := one.Unverified[in.Key.String()]; wrongModel.MatchString(reason) && one.Applied >= in.ModRevision {
				r.say(ofWrongModel(in.Key.String(), one.name()+": "+reason, r.pdctl("get", in.Key.String())))
			}
		}
	}
}

// wrongModels are those that agents tell of.
func (a *Agents) wrongModels(r *report) {
	for _, c := range a.claimants() {
		if wrongModel.MatchString(c.reason) {
			f := ofWrongModel(c.subject(), "its agent "+c.where()+": "+c.reason)
			c.cured(&f, "status")
			r.say(f)
		}
	}
}

// wrongModels are those of the engines that were asked from here.
func (m *Members) wrongModels(r *report) {
	for _, k := range slices.SortedFunc(maps.Keys(m.Models), compareKeys) {
		facts := m.Models[k]
		for _, in := range m.Snapshot.All() {
			if in.Key != k {
				continue
			}
			if want := missing(in.Record.Models, facts); want != "" {
				why := fmt.Sprintf("asked from here it serves %s, not %s", strings.Join(facts.Models, ", "), want)
				r.say(ofWrongModel(k.String(), why, r.pdctl("get", k.String())))
			}
		}
	}
}

// missing is a model that the record lists and the engine does not serve.
func missing(models []string, facts instance.Facts) string {
	for _, m := range models {
		if !facts.Serves(m, false) {
			return m
		}
	}
	return ""
}

func compareKeys(a, b instance.Key) int { return cmp.Compare(a.String(), b.String()) }
