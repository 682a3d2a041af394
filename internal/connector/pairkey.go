package connector

import (
	"github.com/pdmesh/pdmesh/internal/forward/bypass"
	"github.com/pdmesh/pdmesh/internal/instance"
)

// PairKey is the part of an instance that decides which other instances it can be paired with.
type PairKey struct {
	Connector string // name of the dialect
	Build     string // see Terms.Build; "" matches any
	Blocks    int    // see Terms.Blocks; 0 matches any
}

// PairKeyOf returns the PairKey of an instance with this dialect.
func PairKeyOf(d Dialect, in *instance.Instance) PairKey {
	t := d.Terms(in)
	return PairKey{Connector: d.Name(), Build: t.Build, Blocks: t.Blocks}
}

// Mismatch returns the reason, as in package bypass, why instances with the two keys cannot be
// paired; "" if they can. It is symmetric.
func (k PairKey) Mismatch(other PairKey) (reason string) {
	switch {
	case k.Connector != other.Connector:
		return bypass.ConnectorMismatch
	case k.Build != other.Build && k.Build != "" && other.Build != "":
		return bypass.VersionMismatch
	case k.Blocks != other.Blocks && k.Blocks != 0 && other.Blocks != 0:
		return bypass.BlockMismatch
	}
	return ""
}
