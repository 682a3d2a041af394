package flow

import (
	"errors"
	"slices"

	"github.com/pdmesh/pdmesh/internal/alone"
	"github.com/pdmesh/pdmesh/internal/sched"
)

// pairing is what a request has found out about which instances go together.
type pairing struct {
	// mixed is why a prefill instance found no decode instance to go with it, "" if
	// all did.
	mixed string
	// unpaired are the kinds of prefill instances that found none.
	unpaired []kind
}

// without notes that a prefill instance has found no partner. It tells whether that is
// for its kind; then one of another kind may have a partner.
func (g *pairing) without(p *sched.Assignment, err error) (ofKind bool) {
	if g.mixed = mixed(err); g.mixed != "" {
		g.unpaired = append(g.unpaired, kindOf(p))
	}
	return g.mixed != ""
}

// hopeless tells whether an instance of the same kind has found no partner.
func (g *pairing) hopeless(p *sched.Assignment) bool { return slices.Contains(g.unpaired, kindOf(p)) }

// kind of a prefill instance, by which it is paired.
type kind struct {
	connector, build string
	blocks           int
}

func kindOf(a *sched.Assignment) kind { return kind{a.Connector, a.Build, a.Blocks} }

// mixed is the reason of a pick for which only partners of another kind are left.
func mixed(err error) string {
	switch {
	case errors.Is(err, sched.ErrVersions):
		return alone.VersionMismatch
	case errors.Is(err, sched.ErrBlocks):
		return alone.BlockMismatch
	case errors.Is(err, sched.ErrConnectors):
		return alone.ConnectorMismatch
	}
	return ""
}
