package kvparams

import (
	"encoding/json"
	"slices"

	"github.com/pdmesh/pdmesh/sim/fakevllm/pydantic"
)

// MooncakeParams is a parsed kv_transfer_params.
type MooncakeParams struct {
	Produce, Load bool
	TransferID    string
	EngineID      string
	Bootstrap     string
	Missing       []string // of what a decode needs
}

// ParseMooncake reads the field as the connector does: what is asked for is
// true, names are there or not, and nothing else is looked at.
func ParseMooncake(raw []byte) MooncakeParams {
	var k MooncakeParams
	if raw == nil {
		return k
	}
	members := make(map[string][]byte, 8)
	if pydantic.ForEachMember(raw, func(key string, raw []byte) error { members[key] = raw; return nil }) != nil {
		return k
	}
	k.Load = pydantic.Truthy(members["do_remote_prefill"])
	k.Produce = !k.Load && pydantic.Truthy(members["do_remote_decode"])
	for name, into := range map[string]*string{
		"remote_engine_id": &k.EngineID, "remote_bootstrap_addr": &k.Bootstrap, "transfer_id": &k.TransferID,
	} {
		if json.Unmarshal(members[name], into) != nil || *into == "" {
			k.Missing = append(k.Missing, name)
		}
	}
	slices.Sort(k.Missing)
	return k
}
