package doctor

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/pdmesh/pdmesh/internal/instance"
)

// Severity is how bad a finding is.
type Severity string

// The severities, the gravest first.
const (
	Error   Severity = "error"   // something does not work
	Warning Severity = "warning" // it works, and not as it should, or not for long
	Note    Severity = "note"    // good to know; by itself nothing is wrong
)

func (s Severity) rank() int { return slices.Index([]Severity{Error, Warning, Note}, s) }

// Finding is one thing that a check has found.
type Finding struct {
	Check    string   `json:"check"` // see Checks
	Severity Severity `json:"severity"`
	Subject  string   `json:"subject"` // what it is about: etcd, role/address, proxy ID
	What     string   `json:"what"`
	Why      string   `json:"why"`
	Cure     string   `json:"cure"`
	// Commands can be pasted into a shell as they are, one after the other.
	Commands []string `json:"commands,omitempty"`
}

// Check is one line of the table.
type Check struct {
	Name  string
	Looks string // what at, for people
	find  func(*Picture, func(Finding))
}

// Checks lists them in the order in which equally grave findings are shown.
func Checks() []Check {
	return []Check{
		{"etcd", "each endpoint answers, there is a leader, the database is below its quota", (*Picture).etcd},
		{"space", "etcd's alarms: NOSPACE, CORRUPT", (*Picture).alarms},
		{"auth", "etcd accepts this user, and lets it read the keys of the fleet", (*Picture).auth},
		{"schema", "the keys are of a version that this program knows", (*Picture).schema},
		{"certificate", "certificates that have expired, or expire within a week: those of proxies, and the files given here", (*Picture).certificates},
		{"proxy", "each proxy follows the membership and renews its presence", (*Picture).proxies},
		{"rejected", "values in etcd that cannot be used", (*Picture).rejected},
		{"conflict", "one address or engine that is registered twice", (*Picture).conflicts},
		{"model", "engines that serve another model than they should", (*Picture).models},
		{"engine", "engines that are down, that proxies cannot verify, or that do not answer from here (--probe)", (*Picture).engines},
		{"ports", "side channels of two engines on one port of one machine", (*Picture).ports},
		{"pair", "connectors, transfer modes and builds that leave an instance without a partner", (*Picture).pairs},
		{"agent", "agents that are not registered: those of this machine, and others that wrote their reason to etcd", (*Picture).agents},
		{"notice", "other notices of the proxies", (*Picture).notices},
		{"unseen", "what could not be checked", (*Picture).couldNotSee},
	}
}

// Examine gives what all checks find, the gravest first; none if nothing is wrong.
func (p *Picture) Examine() []Finding {
	out := []Finding{}
	for _, c := range Checks() {
		c.find(p, func(f Finding) {
			f.Check = c.Name
			for _, text := range []*string{&f.Subject, &f.What, &f.Why, &f.Cure} {
				*text = instance.Printable(*text, maxText)
			}
			out = append(out, f)
		})
	}
	slices.SortStableFunc(out, func(a, b Finding) int { return cmp.Compare(a.Severity.rank(), b.Severity.rank()) })
	return out
}

// maxText bounds a part of a finding.
const maxText = 1000

// Wrong tells that some finding is more than a note.
func Wrong(list []Finding) bool {
	return slices.ContainsFunc(list, func(f Finding) bool { return f.Severity != Note })
}

// shell joins words to a command. What came out of etcd may be anything: a word that a
// shell would read otherwise is quoted.
func shell(words ...string) string {
	out := make([]string, len(words))
	for i, w := range words {
		out[i] = word(w)
	}
	return strings.Join(out, " ")
}

func word(w string) string {
	plain := w != "" && strings.IndexFunc(w, func(r rune) bool {
		return !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("-_./:=,@%+", r))
	}) < 0
	if plain {
		return w
	}
	return "'" + strings.ReplaceAll(instance.Printable(w, 400), "'", `'\''`) + "'"
}

// pdctl and etcdctl make commands with what they need to reach this etcd.
func (p *Picture) pdctl(words ...string) string {
	return shell(slices.Concat([]string{"pdctl"}, words, p.Reach.Pdctl)...)
}

func (p *Picture) etcdctl(words ...string) string {
	return shell(slices.Concat([]string{"etcdctl"}, p.Reach.Etcdctl, words)...)
}

// some names a few of many.
func some(names []string) string {
	const most = 4
	if len(names) <= most {
		return strings.Join(names, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(names[:most], ", "), len(names)-most)
}
