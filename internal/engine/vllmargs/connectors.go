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

// class returns the engine's connector as defined by package connector. The first integration of
// Mooncake had the name of the present one: one pair that transfers KV caches by itself. It is
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

// Dialect returns the dialect of a proxy that fits the connector, "" when there is
// none. An error wraps ErrConnector and says what to do.
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

// multi decides by the connectors inside: the one that needs the proxy's help
// rules, stores go along with it.
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

// NIXL reports whether the engine transfers KV caches by NIXL, also as a part of a
// MultiConnector. Such an engine listens on a side channel.
func (t *Transfer) NIXL() bool {
	return slices.ContainsFunc(t.parts(), func(p *Transfer) bool {
		return slices.Contains([]string{"nixlconnector", "nixlpullconnector", "nixlpushconnector"}, strings.ToLower(p.Connector))
	})
}

// LMCache reports whether LMCache's in-process connector is a part of the engine's. With
// LMCache's PD backend it hands over by itself.
func (t *Transfer) LMCache() bool {
	return slices.ContainsFunc(t.parts(), func(p *Transfer) bool { return strings.EqualFold(p.Connector, "LMCacheConnectorV1") })
}

// Mooncake returns the part that is vLLM's MooncakeConnector, also within a
// MultiConnector; nil if there is none. A producer of it has a bootstrap server.
func (t *Transfer) Mooncake() *Transfer {
	for _, p := range t.parts() {
		if p.class().Dialect == dialectMooncake {
			return p
		}
	}
	return nil
}

// Offloading returns the part whose blocks other engines fetch from a P2P tier, also
// within a MultiConnector; nil if there is none.
func (t *Transfer) Offloading() *P2PTier {
	for _, p := range t.parts() {
		if p.Tier != nil {
			return p.Tier
		}
	}
	return nil
}

// LeaseSeconds returns the time for which the engine keeps the blocks of a KV transfer, also of a
// part of a MultiConnector; 0 if it is not set.
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

// Describe names the connector for people, those inside a MultiConnector too.
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
