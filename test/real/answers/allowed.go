package answers

import (
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
)

// Rule allows differences.
type Rule struct {
	// Cases and Paths name requests and places; a * matches anything.
	Cases []string `yaml:"cases"`
	Paths []string `yaml:"paths"`
	// Reason is what a reader needs to agree.
	Reason string `yaml:"reason"`
	// Seldom marks what is not seen in every run; a rule without it that
	// nothing needed is an error, so that the list stays true.
	Seldom bool `yaml:"seldom"`

	used bool
}

// Allowed is a list of rules. It must be used by one goroutine at a time.
type Allowed struct{ rules []*Rule }

// ReadAllowed reads a list of rules in YAML. A rule without a reason is an error.
func ReadAllowed(r io.Reader) (*Allowed, error) {
	d := yaml.NewDecoder(r)
	d.KnownFields(true)
	var a Allowed
	if err := d.Decode(&a.rules); err != nil && !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("allowed differences: %w", err)
	}
	for i, rule := range a.rules {
		if len(rule.Cases) == 0 || len(rule.Paths) == 0 || strings.TrimSpace(rule.Reason) == "" {
			return nil, fmt.Errorf("allowed differences: rule %d has no cases, no paths or no reason", i+1)
		}
	}
	return &a, nil
}

// Judge returns the differences of a case that no rule allows, and reports whether any
// was allowed by a rule that is not about all cases.
func (a *Allowed) Judge(name string, list []Difference) (forbidden []Difference, special bool) {
	for _, d := range list {
		allowed, everywhere := a.allows(name, d.Path)
		if !allowed {
			forbidden = append(forbidden, d)
		}
		special = special || allowed && !everywhere
	}
	return forbidden, special
}

// allows marks every rule that fits as used, so that two which overlap both count.
func (a *Allowed) allows(name, path string) (ok, everywhere bool) {
	for _, rule := range a.rules {
		if matches(rule.Cases, name) && matches(rule.Paths, path) {
			rule.used, ok = true, true
			everywhere = everywhere || slices.Contains(rule.Cases, "*")
		}
	}
	return ok, everywhere
}

// Unused returns the rules that nothing has needed and that should have been.
func (a *Allowed) Unused() (out []string) {
	for _, rule := range a.rules {
		if !rule.used && !rule.Seldom {
			out = append(out, fmt.Sprintf("%s at %s: %s", strings.Join(rule.Cases, ", "), strings.Join(rule.Paths, ", "), strings.TrimSpace(rule.Reason)))
		}
	}
	return out
}

func matches(patterns []string, s string) bool {
	for _, p := range patterns {
		exp := "^" + strings.ReplaceAll(regexp.QuoteMeta(p), `\*`, ".*") + "$"
		if ok, err := regexp.MatchString(exp, s); err == nil && ok {
			return true
		}
	}
	return false
}
