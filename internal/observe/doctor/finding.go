package doctor

import (
	"slices"
	"strings"

	"github.com/pdmesh/pdmesh/internal/cli"
	"github.com/pdmesh/pdmesh/internal/instance"
)

// Severity is the severity of a finding.
type Severity string

// The severities, most severe first.
const (
	Error   Severity = "error"   // something does not work
	Warning Severity = "warning" // it works, but not as intended, or not for long
	Note    Severity = "note"    // information; nothing is wrong by itself
)

func (s Severity) rank() int { return slices.Index([]Severity{Error, Warning, Note}, s) }

// Finding is a result of a check.
type Finding struct {
	Check    string   `json:"check"` // see Checks
	Severity Severity `json:"severity"`
	Subject  string   `json:"subject"` // etcd, role/address or proxy ID
	What     string   `json:"what"`
	Why      string   `json:"why"`
	Cure     string   `json:"cure"`
	// Commands can be pasted into a shell unchanged, one after the other.
	Commands []string `json:"commands,omitempty"`
}

// Wrong reports whether a finding is an error or a warning.
func Wrong(list []Finding) bool {
	return slices.ContainsFunc(list, func(f Finding) bool { return f.Severity != Note })
}

// report collects findings and builds the commands of cures.
type report struct {
	Reach
	check    string // the running check
	findings []Finding
}

// add adds a finding of the running check. Line breaks in its texts, which error messages may
// have, become semicolons.
func (r *report) add(f Finding) {
	f.Check = r.check
	for _, text := range []*string{&f.Subject, &f.What, &f.Why, &f.Cure} {
		*text = instance.Printable(strings.ReplaceAll(strings.TrimSpace(*text), "\n", "; "), maxText)
	}
	r.findings = append(r.findings, f)
}

// maxText bounds a text of a finding.
const maxText = 1000

// Reach has the flags with which commands reach the same etcd.
type Reach struct{ Pdctl, Etcdctl []string }

// pdctl returns a pdctl command line.
func (r *Reach) pdctl(words ...string) string {
	return shell(slices.Concat([]string{"pdctl"}, words, r.Pdctl)...)
}

// etcdctl returns an etcdctl command line.
func (r *Reach) etcdctl(words ...string) string {
	return shell(slices.Concat([]string{"etcdctl"}, r.Etcdctl, words)...)
}

// shell joins words to a command line. It makes words that need quotes printable first, because values
// from etcd are untrusted.
func shell(words ...string) string {
	out := make([]string, len(words))
	for i, w := range words {
		if out[i] = cli.ShellWord(w); out[i] != w {
			out[i] = cli.ShellWord(instance.Printable(w, 400))
		}
	}
	return strings.Join(out, " ")
}
