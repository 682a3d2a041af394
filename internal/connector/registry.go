package connector

import (
	"cmp"
	"errors"
	"fmt"
	"strings"

	"github.com/pdmesh/pdmesh/internal/instance"
)

// ErrUnknown is wrapped by the errors of Canonical and New.
var ErrUnknown = errors.New("unknown connector")

// registry lists every dialect, in the only such list. Classes has the engine classes that
// use each dialect.
func registry() []Dialect {
	return []Dialect{plain{}, nixl{}, nixlPush{}, mooncake{}, ascend{}, p2p{}, moriioRead{}, moriioWrite{}, lmcache{}}
}

// Default is the dialect of an instance whose record names none.
const Default = "plain"

// Names lists the short names.
func Names() []string {
	var names []string
	for _, d := range registry() {
		names = append(names, d.Name())
	}
	return names
}

// Canonical returns the short name of a connector in a record, which has a short name or
// the class name of the engine's connector, in any case. The empty name stays empty. For
// MoRIIO, the transfer mode in the record determines the dialect.
func Canonical(name string) (string, error) {
	if name == "" {
		return "", nil
	}
	for _, d := range registry() {
		if strings.EqualFold(name, d.Name()) {
			return d.Name(), nil
		}
	}
	switch c, _ := OfClass(name); {
	case strings.EqualFold(name, MoRIIO), c.Itself != "":
		return MoRIIO, nil
	case c.Dialect != "":
		return c.Dialect, nil
	case c.Refused != "":
		return "", fmt.Errorf("%w %s: %s; see %s", ErrUnknown, c.Name, c.Refused, c.Page)
	}
	return "", fmt.Errorf("%w %q: known are %s", ErrUnknown, name, strings.Join(Names(), ", "))
}

// New returns the dialect of that name; the empty name means Default.
func New(name string) (Dialect, error) {
	short, err := Canonical(cmp.Or(name, Default))
	if err != nil {
		return nil, err
	}
	for _, d := range registry() {
		if d.Name() == short {
			return ranked{d}, nil
		}
	}
	return nil, fmt.Errorf("%w %q", ErrUnknown, name)
}

// OfRecord returns the dialect for an instance; def is the connector of records that name
// none.
func OfRecord(rec *instance.Record, def string) (Dialect, error) {
	name := cmp.Or(rec.Connector, def)
	if short, err := Canonical(name); err == nil && short == MoRIIO {
		if name, err = moriioDialect(rec.TransferMode); err != nil {
			return nil, err
		}
	}
	return New(name)
}

// Lacks returns an error if a record lacks something to serve in the role of its key, such as
// an engine of that role. def is the connector of records that name none. See Dialect.Lacks.
func Lacks(k instance.Key, rec instance.Record, def string) error {
	d, err := OfRecord(&rec, def)
	if err != nil {
		return err
	}
	if err := d.Lacks(&instance.Instance{Key: k, Record: rec}); err != nil {
		return fmt.Errorf("connector %s: %w", d.Name(), err)
	}
	return nil
}
