package vllmargs

import (
	"fmt"
	"strings"

	"github.com/pdmesh/pdmesh/internal/instance"
)

// The dialects, as internal/connector names them.
const (
	dialectPlain = "plain"
	dialectNixl  = "nixl"
)

// dialectOf maps vLLM's connectors, and those of vllm-ascend, to the dialect in
// which a proxy speaks to their engines. Instances that share a store need no
// word about the transfer (plain); NIXL and vllm-ascend's pulling connector
// carry kv_transfer_params from the prefill answer to the decode request.
func dialectOf(name string) (dialect string, known bool) {
	switch strings.ToLower(name) {
	case "nixlconnector", "nixlpullconnector", "mooncakeconnectorv1":
		return dialectNixl, true
	case "mooncakestoreconnector", "mooncakeconnectorstorev1", "ascendstoreconnector",
		"lmcacheconnector", "lmcacheconnectorv1", "lmcachempconnector",
		"sharedstorageconnector", "exampleconnector", "hf3fskvconnector", "flexkvconnectorv1",
		"offloadingconnector", "simplecpuoffloadconnector", "pyncclconnector":
		return dialectPlain, true
	}
	return "", false
}

// local tells connectors that only move blocks between memories of one machine:
// beside another connector they decide nothing.
func local(name string) bool {
	switch strings.ToLower(name) {
	case "offloadingconnector", "simplecpuoffloadconnector":
		return true
	}
	return false
}

// Dialect gives the dialect of a proxy that fits the connector, "" when there is
// none. An error wraps ErrConnector and says what to do.
func (t *Transfer) Dialect() (string, error) {
	switch {
	case t.Connector == "":
		return "", nil
	case t.Connector == "MultiConnector":
		return t.multi()
	case t.Connector == "MooncakeConnector" && t.ranked:
		// The first integration: one pair that hands over by itself. Today's
		// connector of that name wants a transfer_id from the proxy.
		return dialectPlain, nil
	}
	if d, ok := dialectOf(t.Connector); ok {
		return d, nil
	}
	return "", fmt.Errorf("%w: %q: the proxy speaks %s (shared KV stores) and %s; if one of them fits, say so with --connector",
		ErrConnector, instance.Printable(t.Connector, 60), dialectPlain, dialectNixl)
}

// multi decides by the connectors inside: the one that needs the proxy's help
// rules, stores go along with it.
func (t *Transfer) multi() (string, error) {
	dialect := ""
	for i := range t.Connectors {
		inner := &t.Connectors[i]
		d, err := inner.Dialect()
		switch {
		case err != nil:
			return "", fmt.Errorf("in a MultiConnector: %w", err)
		case d == dialectNixl, dialect == "" && !local(inner.Connector):
			dialect = d
		}
	}
	if dialect == "" {
		dialect = dialectPlain
	}
	return dialect, nil
}

// NIXL tells whether the engine hands over by NIXL, also as a part of a
// MultiConnector. Such an engine listens on a side channel.
func (t *Transfer) NIXL() bool {
	switch strings.ToLower(t.Connector) {
	case "nixlconnector", "nixlpullconnector", "nixlpushconnector":
		return true
	}
	for i := range t.Connectors {
		if t.Connectors[i].NIXL() {
			return true
		}
	}
	return false
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
