package kvparams

import (
	"encoding/json"

	"github.com/pdmesh/pdmesh/sim/fakevllm/pydantic"
)

// P2PMember is what kv_transfer_params say of one role of the P2P tier, nil if
// nothing.
func P2PMember(raw []byte, name string) []byte {
	var found []byte
	if raw != nil {
		_ = pydantic.ForEachMember(raw, func(key string, value []byte) error { // what is no object has no members
			if key == name && len(value) > 0 && value[0] == '{' {
				found = value
			}
			return nil
		})
	}
	return found
}

// P2PRole is one of the two, as the tier reads it.
type P2PRole struct {
	ID   string `json:"kv_request_id"`
	Host string `json:"remote_host"`
	Port int    `json:"remote_port"`
}

func ParseP2P(raw []byte, name string) (role P2PRole, present bool) {
	member := P2PMember(raw, name)
	if member == nil || json.Unmarshal(member, &role) != nil {
		return P2PRole{}, member != nil
	}
	return role, true
}
