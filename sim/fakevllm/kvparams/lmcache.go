package kvparams

import (
	"encoding/json"
	"errors"
	"strings"

	"github.com/pdmesh/pdmesh/sim/fakevllm/pydantic"
)

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
	if raw == nil {
		return nil, "", nil
	}
	err = pydantic.ForEachMember(raw, func(key string, raw []byte) error {
		switch {
		case key == "disagg_spec":
			spec = new(LMCacheSpec)
			if json.Unmarshal(raw, spec) != nil || spec.ID == "" || spec.Host == "" {
				return errSpec
			}
		case strings.HasPrefix(key, "lmcache.tag."):
			tags += "@" + key + "%" + string(raw)
		}
		return nil
	})
	return spec, tags, err
}
