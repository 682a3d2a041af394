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

// Rule allows certain differences.
type Rule struct {
	// Cases and Paths are patterns of request names and of paths in an answer; * matches anything.
	Cases []string `yaml:"cases"`
	Paths []string `yaml:"paths"`
	// Reason explains the rule to a reader.
	Reason string `yaml:"reason"`
	// Seldom marks differences that do not occur in every run. Any other rule that matches nothing is
	// an error, so that the list stays up to date.
	Seldom bool `yaml:"seldom"`

	used bool
}

// Allowed is a list of rules. It is not safe for concurrent use.
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

// Judge returns the differences of a case that no rule allows, and reports whether any was allowed by a rule
// that does not apply to all cases.
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

// allows marks every matching rule as used, so that overlapping rules all count.
func (a *Allowed) allows(name, path string) (ok, everywhere bool) {
	for _, rule := range a.rules {
		if matches(rule.Cases, name) && matches(rule.Paths, path) {
			rule.used, ok = true, true
			everywhere = everywhere || slices.Contains(rule.Cases, "*")
		}
	}
	return ok, everywhere
}

// Unused returns the rules, except seldom ones, that have matched nothing.
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
