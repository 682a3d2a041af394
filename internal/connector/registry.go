package connector

import (
	"errors"
	"fmt"
	"strings"
)

// ErrUnknown is wrapped by the errors of Canonical and New.
var ErrUnknown = errors.New("unknown connector")

// entry is a dialect, and what vLLM calls the class of engines that speak it.
type entry struct {
	dialect Dialect
	class   string // "" if it is no single one
}

// registry lists every dialect. There is no second list.
func registry() []entry {
	return []entry{
		{plain{}, ""},
		{nixl{}, "NixlConnector"},
		{mooncake{}, "MooncakeConnector"},
	}
}

// Default is the dialect of an instance whose record names none.
const Default = "plain"

// Names lists the short names.
func Names() []string {
	var names []string
	for _, e := range registry() {
		names = append(names, e.dialect.Name())
	}
	return names
}

// Canonical gives the short name of a connector as it may stand in a record:
// a short name or vLLM's class name, in any case. The empty name is empty.
func Canonical(name string) (string, error) {
	if name == "" {
		return "", nil
	}
	for _, e := range registry() {
		if strings.EqualFold(name, e.dialect.Name()) || e.class != "" && strings.EqualFold(name, e.class) {
			return e.dialect.Name(), nil
		}
	}
	return "", fmt.Errorf("%w %q: known are %s", ErrUnknown, name, strings.Join(Names(), ", "))
}

// New gives the dialect of that name; the empty name means Default.
func New(name string) (Dialect, error) {
	if name == "" {
		name = Default
	}
	short, err := Canonical(name)
	if err != nil {
		return nil, err
	}
	for _, e := range registry() {
		if e.dialect.Name() == short {
			return e.dialect, nil
		}
	}
	return nil, fmt.Errorf("%w %q", ErrUnknown, name)
}
