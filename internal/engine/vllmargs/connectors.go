package vllmargs

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/pdmesh/pdmesh/internal/connector"
	"github.com/pdmesh/pdmesh/internal/instance"
)

// The dialects that this package decides about; package connector has all of them.
const (
	dialectPlain    = "plain"
	dialectMooncake = "mooncake"
	dialectP2P      = "p2p"
)

// class returns the class of the engine's connector, as defined by package connector. Mooncake's first
// integration, one pair that transfers KV caches by itself, had the same name as the present one. It is
// recognized by members that only vLLM's first engine had.
func (t *Transfer) class() connector.Class {
	c, _ := connector.OfClass(t.Connector)
	if c.Dialect == dialectMooncake && t.ranked {
		c.Dialect = dialectPlain
	}
	if t.Tier != nil {
		c.Dialect, c.Local = dialectP2P, false
	}
	return c
}

// Dialect returns the dialect that fits the connector, "" if there is no connector. Errors wrap ErrConnector
// and name a remedy.
func (t *Transfer) Dialect() (string, error) {
	switch t.Connector {
	case "":
		return "", nil
	case multiConnector:
		return t.multi()
	}
	c := t.class()
	if c.Dialect != "" {
		return c.Dialect, nil
	}
	why := ""
	if c.Refused != "" || c.Itself != "" {
		why = c.Refused + c.Itself + " (" + c.Page + "); "
	}
	return "", fmt.Errorf("%w: %q: %sthe proxy speaks %s; if one of them fits, set --connector",
		ErrConnector, instance.Printable(t.Connector, 60), why, strings.Join(connector.Names(), ", "))
}

// multi returns the dialect for the connectors inside a MultiConnector. It is that of the one that needs the
// proxy's help; stores do not affect it.
func (t *Transfer) multi() (string, error) {
	dialect := ""
	for i := range t.Connectors {
		inner := &t.Connectors[i]
		d, err := inner.Dialect()
		c := inner.class()
		switch {
		case err != nil:
			return "", fmt.Errorf("in a MultiConnector: %w", err)
		case dialect != "" && dialect != dialectPlain && d != "" && d != dialectPlain && d != dialect:
			return "", fmt.Errorf("%w: in a MultiConnector: %s and %s both need the proxy's help; set --connector to the one that transfers the KV cache",
				ErrConnector, dialect, d)
		case d != "" && d != dialectPlain, dialect == "" && !c.Local:
			dialect = d
		}
	}
	return cmp.Or(dialect, dialectPlain), nil
}

// parts returns t and the connectors inside a MultiConnector.
func (t *Transfer) parts() []*Transfer {
	all := []*Transfer{t}
	for i := range t.Connectors {
		all = append(all, t.Connectors[i].parts()...)
	}
	return all
}

// NIXL reports whether the engine transfers KV caches by NIXL, possibly inside a MultiConnector. Such an
// engine listens on a side channel.
func (t *Transfer) NIXL() bool {
	return slices.ContainsFunc(t.parts(), func(p *Transfer) bool {
		return slices.Contains([]string{"nixlconnector", "nixlpullconnector", "nixlpushconnector"}, strings.ToLower(p.Connector))
	})
}

// LMCache reports whether the engine uses LMCache's in-process connector, possibly inside a MultiConnector.
// With LMCache's PD backend, it transfers KV caches by itself.
func (t *Transfer) LMCache() bool {
	return slices.ContainsFunc(t.parts(), func(p *Transfer) bool { return strings.EqualFold(p.Connector, "LMCacheConnectorV1") })
}

// Mooncake returns the part that is vLLM's MooncakeConnector, possibly inside a MultiConnector; nil if there
// is none. A producer with this connector has a bootstrap server.
func (t *Transfer) Mooncake() *Transfer {
	for _, p := range t.parts() {
		if p.class().Dialect == dialectMooncake {
			return p
		}
	}
	return nil
}

// Offloading returns the P2P tier from which other engines fetch blocks, possibly inside a MultiConnector;
// nil if there is none.
func (t *Transfer) Offloading() *P2PTier {
	for _, p := range t.parts() {
		if p.Tier != nil {
			return p.Tier
		}
	}
	return nil
}

// LeaseSeconds returns the longest time, over all connectors of a MultiConnector, for which the engine keeps
// the blocks of a KV transfer; 0 if it is not set.
func (t *Transfer) LeaseSeconds() (seconds int) {
	for _, p := range t.parts() {
		if p.Tier != nil {
			seconds = max(seconds, p.Tier.Timeout)
		} else {
			seconds = max(seconds, p.Lease)
		}
	}
	return seconds
}

// Describe returns the connector's name for display, with the names inside a MultiConnector.
func (t *Transfer) Describe() string {
	if len(t.Connectors) == 0 {
		return t.Connector
	}
	var names []string
	for i := range t.Connectors {
		names = append(names, t.Connectors[i].Describe())
	}
	return t.Connector + "(" + strings.Join(names, ",") + ")"
}
