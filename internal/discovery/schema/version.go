package schema

import (
	"encoding/json"
	"errors"
	"fmt"

	"time"

	"github.com/pdmesh/pdmesh/internal/instance"
)

// Version is the major version of the layout and the values that this
// code writes.
const Version = 1

// VersionValue is the value of the schema key.
const VersionValue = `{"v":1}`

// Errors of CheckVersion.
var (
	// ErrNewer means that a newer program has changed the layout; this
	// one reads it as well as it can and writes nothing.
	ErrNewer = errors.New("the keys in etcd are of a newer version")
	// ErrForeign means that another program uses the prefix.
	ErrForeign = errors.New("the keys in etcd are not ours")
)

// CheckVersion checks, by the value of the schema key, whether this code may write below the
// layout's root. It returns nil for this or an older major version, else an error that wraps
// ErrNewer or ErrForeign and names a remedy.
func CheckVersion(l Layout, value []byte) error {
	var schema struct {
		V *int `json:"v"`
	}
	if err := json.Unmarshal(value, &schema); err != nil || schema.V == nil {
		return fmt.Errorf("%w: %s holds %q; use another --etcd-prefix", ErrForeign, l.Schema(), instance.Printable(string(value), 80))
	}
	if *schema.V > Version {
		return fmt.Errorf("%w: %s says version %d, this program writes version %d; upgrade it, or use another --etcd-prefix", ErrNewer, l.Schema(), *schema.V, Version)
	}
	return nil
}

// DefaultTTL is the default TTL of registrations and presences.
const DefaultTTL = 15 * time.Second
