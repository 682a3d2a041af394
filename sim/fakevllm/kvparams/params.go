// Package kvparams is kv_transfer_params: what the connectors of vLLM read in a request, what
// of it they cannot use, and what a prefill answers.
package kvparams

import (
	"encoding/json"
	"errors"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"

	"github.com/pdmesh/pdmesh/sim/fakevllm/pydantic"
)

// Mode is how KV caches travel between engines.
type Mode string

// The modes.
const (
	// Plain engines share a KV pool and need nothing in the request.
	Plain Mode = "plain"
	// NIXL engines hand over by kv_transfer_params, pull mode.
	NIXL Mode = "nixl"
	// NIXLPush engines hand over by kv_transfer_params, push mode: prefill finds the
	// request of decode by its id.
	NIXLPush Mode = "nixl_push"
	// Ascend engines have vllm-ascend's MooncakeConnectorV1.
	Ascend Mode = "ascend"
	// P2P engines have an OffloadingConnector with a tier of type p2p: decode fetches
	// by kv_request_id from the side channel of prefill.
	P2P Mode = "p2p"
	// Mooncake engines transfer by vLLM's own MooncakeConnector: both legs carry a
	// transfer_id, and decode finds prefill through its bootstrap server. The role
	// is kv_role, and a leg for the other one kills the engine.
	Mooncake Mode = "mooncake"
	// MoRIIORead and MoRIIOWrite engines transfer by vLLM's MoRIIOConnector in one of
	// its modes, and register themselves by ZeroMQ.
	MoRIIORead  Mode = "moriio_read"
	MoRIIOWrite Mode = "moriio_write"
	// LMCache engines hand over by LMCache's PD backend: prefill writes into the
	// buffer of a decode that its leg names, and notifies by ZeroMQ.
	LMCache Mode = "lmcache"
)

// AnswersParams reports whether a prefill in this mode answers with kv_transfer_params.
func (m Mode) AnswersParams() bool { return m == NIXL || m == NIXLPush || m == Ascend }

// membersOf returns the members of kv_transfer_params, nil for nil.
func membersOf(raw []byte) (map[string]json.RawMessage, error) {
	if raw == nil {
		return nil, nil
	}
	return pydantic.Members(raw)
}

// P2PRole is what kv_transfer_params say of one role of the P2P tier.
type P2PRole struct {
	ID   string `json:"kv_request_id"`
	Host string `json:"remote_host"`
	Port int    `json:"remote_port"`
}

// ParseP2P reads the role of this name; present reports whether there is an object for it.
func ParseP2P(raw []byte, name string) (role P2PRole, present bool) {
	members, err := membersOf(raw)
	member := members[name]
	if err != nil || len(member) == 0 || member[0] != '{' {
		return role, false
	}
	if json.Unmarshal(member, &role) != nil {
		return P2PRole{}, true
	}
	return role, true
}

// LMCacheSpec is what a prefill leg says.
type LMCacheSpec struct {
	ID    string `json:"req_id"`
	Host  string `json:"receiver_host"`
	Init  []int  `json:"receiver_init_port"`
	Alloc []int  `json:"receiver_alloc_port"`
}

var errSpec = errors.New("disagg_spec is not whole")

// ParseLMCache reads kv_transfer_params: the spec, nil if there is none, and the tags.
func ParseLMCache(raw []byte) (spec *LMCacheSpec, tags string, err error) {
	members, err := membersOf(raw)
	for _, name := range slices.Sorted(maps.Keys(members)) {
		switch {
		case name == "disagg_spec":
			spec = new(LMCacheSpec)
			if json.Unmarshal(members[name], spec) != nil || spec.ID == "" || spec.Host == "" {
				err = errSpec
			}
		case strings.HasPrefix(name, "lmcache.tag."):
			tags += "@" + name + "%" + string(members[name])
		}
	}
	return spec, tags, err
}

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
	members, err := membersOf(raw)
	if err != nil || members == nil {
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

// extraField must come back byte for byte: a proxy that decodes and encodes
// the object turns 1.0 into 1, or é into its escape or back.
const (
	extraField = "x_transfer_hints"
	extraValue = `{"layout":"HND","ratio":1.0,"note":"caf\u00e9 <&> é","big":18446744073709551615}`
	tokenField = "remote_kv_token" //nolint:gosec // the name of a JSON field, no credential
)

// NewToken is a random integer between 2^53 and 2^63, odd, so that a float64
// always spoils it.
func NewToken() string {
	return strconv.FormatUint(1<<62+rand.Uint64N(1<<61)|1, 10)
}
