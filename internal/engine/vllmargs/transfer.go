package vllmargs

import (
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/pdmesh/pdmesh/internal/instance"
)

// Errors of this package; test with errors.Is.
var (
	// ErrTransfer: a --kv-transfer-config that cannot be read.
	ErrTransfer = errors.New("unusable KV transfer configuration")
	// ErrConnector: a connector without a matching dialect of the proxy.
	ErrConnector = errors.New("no dialect for this connector")
	// ErrCommand: a command that starts no engine that could be registered.
	ErrCommand = errors.New("nothing to register")
)

// Transfer is the content of --kv-transfer-config.
type Transfer struct {
	Connector string // kv_connector as written; "" if none
	KVRole    string // kv_producer, kv_consumer, kv_both, or ""
	EngineID  string
	// Bootstrap is bootstrap_server_address: host:port of a bootstrap server that a Mooncake engine does not
	// start itself; "" if it is not set.
	Bootstrap string
	// Tier is the tier of type p2p of an OffloadingConnector, nil if there is none.
	Tier *P2PTier
	// Lease is kv_lease_duration in seconds, the time for which a NIXL engine keeps the blocks of
	// a KV transfer; 0 if it is not set.
	Lease int
	// Connectors are the connectors inside a MultiConnector, in their order.
	Connectors []Transfer

	ranked bool // kv_rank and kv_parallel_size, which only vLLM's first engine had
}

// P2PTier is a tier that engines fetch from each other.
type P2PTier struct {
	Port    int // of its side channel for rank 0; 0 if not set
	Timeout int // unbound_store_timeout_s: seconds for which it keeps blocks that no engine fetches; 0: not set
}

type transferJSON struct {
	Connector    string          `json:"kv_connector"`
	Role         string          `json:"kv_role"`
	EngineID     string          `json:"engine_id"`
	Rank         json.RawMessage `json:"kv_rank"`
	ParallelSize json.RawMessage `json:"kv_parallel_size"`
	Extra        struct {
		Connectors []transferJSON `json:"connectors"`
		Bootstrap  string         `json:"bootstrap_server_address"`
		Lease      number         `json:"kv_lease_duration"`
		Spec       string         `json:"spec_name"`
		Tiers      []tierJSON     `json:"secondary_tiers"`
	} `json:"kv_connector_extra_config"`
}

type tierJSON struct {
	Type    string `json:"type"`
	Port    number `json:"port"`
	Timeout number `json:"unbound_store_timeout_s"`
}

// number is a whole number from 0, or 0 for any other value. vLLM accepts numbers in quotes, too, and reports
// values that it does not accept.
type number int

// UnmarshalJSON implements json.Unmarshaler.
func (n *number) UnmarshalJSON(b []byte) error {
	f, err := strconv.ParseFloat(strings.Trim(string(b), `"`), 64)
	if err == nil && f >= 0 && f < 1<<31 {
		*n = number(f)
	}
	return nil
}

// tieringSpec is the offloading spec that has tiers.
const tieringSpec = "TieringOffloadingSpec"

// tier returns the tier of type p2p, nil if there is none.
func (raw *transferJSON) tier() *P2PTier {
	if strings.TrimSpace(raw.Extra.Spec) != tieringSpec {
		return nil
	}
	for _, t := range raw.Extra.Tiers {
		if strings.TrimSpace(t.Type) == "p2p" {
			return &P2PTier{Port: int(t.Port), Timeout: int(t.Timeout)}
		}
	}
	return nil
}

// ParseTransfer reads the JSON of --kv-transfer-config.
func ParseTransfer(text string) (Transfer, error) {
	if s := strings.TrimSpace(text); s == "" || s[0] != '{' {
		return Transfer{}, fmt.Errorf("%w: %q is not a JSON object: quote it as one argument, '{\"kv_connector\":\"NixlConnector\",\"kv_role\":\"kv_producer\"}'",
			ErrTransfer, instance.Printable(text, 60))
	}
	var raw transferJSON
	if err := json.Unmarshal([]byte(text), &raw); err != nil {
		if kind, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
			return Transfer{}, fmt.Errorf("%w: %s must not be a %s", ErrTransfer, kind.Field, kind.Value)
		}
		return Transfer{}, fmt.Errorf("%w: %s: quote it as one argument", ErrTransfer, instance.Printable(err.Error(), 120))
	}
	return raw.transfer(0)
}

const (
	multiConnector      = "MultiConnector" // contains other connectors
	offloadingConnector = "OffloadingConnector"
)

// maxDepth bounds the nesting of connectors.
const maxDepth = 4

func (raw *transferJSON) transfer(depth int) (Transfer, error) {
	if depth > maxDepth {
		return Transfer{}, fmt.Errorf("%w: connectors inside connectors, %d deep", ErrTransfer, depth)
	}
	t := Transfer{
		Connector: strings.TrimSpace(raw.Connector), KVRole: strings.TrimSpace(raw.Role), EngineID: strings.TrimSpace(raw.EngineID), Bootstrap: strings.TrimSpace(raw.Extra.Bootstrap),
		Lease:  int(raw.Extra.Lease),
		ranked: len(raw.Rank) > 0 && string(raw.Rank) != "null" && len(raw.ParallelSize) > 0,
	}
	if strings.EqualFold(t.Connector, offloadingConnector) {
		t.Tier = raw.tier()
	}
	switch t.KVRole {
	case "", kvProducer, kvConsumer, kvBoth:
	default:
		return Transfer{}, fmt.Errorf("%w: kv_role %q: vLLM knows %s, %s and %s", ErrTransfer, instance.Printable(t.KVRole, 40), kvProducer, kvConsumer, kvBoth)
	}
	for i := range raw.Extra.Connectors {
		inner, err := raw.Extra.Connectors[i].transfer(depth + 1)
		if err != nil {
			return Transfer{}, err
		}
		t.Connectors = append(t.Connectors, inner)
	}
	if t.Connector == multiConnector && len(t.Connectors) == 0 {
		return Transfer{}, fmt.Errorf("%w: a MultiConnector without kv_connector_extra_config.connectors", ErrTransfer)
	}
	return t, nil
}

// The values of kv_role.
const (
	kvProducer = "kv_producer"
	kvConsumer = "kv_consumer"
	kvBoth     = "kv_both"
)

// Role returns the instance's role; see RoleOf.
func (t *Transfer) Role() (role instance.Role, ok bool) { return RoleOf(t.KVRole) }

// RoleOf returns the instance's role for a kv_role. ok is false for kv_both and for "", which do not
// determine it.
func RoleOf(kvRole string) (role instance.Role, ok bool) {
	switch kvRole {
	case kvProducer:
		return instance.Prefill, true
	case kvConsumer:
		return instance.Decode, true
	}
	return "", false
}

// EnvKVRole is the variable that sets the role of vLLM's first disaggregated engine.
const EnvKVRole = "VLLM_DISTRIBUTED_KV_ROLE"

// ParseEnvRole reads a value of EnvKVRole: producer, consumer or both. The
// result is a kv_role.
func ParseEnvRole(value string) (kvRole string, err error) {
	switch kvRole = "kv_" + strings.TrimPrefix(strings.ToLower(strings.TrimSpace(value)), "kv_"); kvRole {
	case kvProducer, kvConsumer, kvBoth:
		return kvRole, nil
	}
	return "", fmt.Errorf("%w: %s=%q: vLLM knows producer, consumer and both", ErrTransfer, EnvKVRole, instance.Printable(value, 40))
}
