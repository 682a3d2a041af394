package instance

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
)

// DefaultKey is the name of all clients whose API key has no name, or that need no key. Their
// requests count together, and with those of a key of this name.
const DefaultKey = "default"

// maxKeyLimit bounds every limit of a key.
const maxKeyLimit = 1_000_000_000_000

// KeyLimits are the limits of one API key for all proxies together, and the JSON value of its
// document below limits/. 0 means no limit.
type KeyLimits struct {
	V          int   `json:"v"`
	Requests   int64 `json:"rpm,omitempty"`          // requests per minute
	Input      int64 `json:"input_tpm,omitempty"`    // tokens of prompts per minute
	Output     int64 `json:"output_tpm,omitempty"`   // generated tokens per minute
	Uncached   int64 `json:"uncached_tpm,omitempty"` // tokens of prompts that no cache had, per minute
	Concurrent int64 `json:"concurrent,omitempty"`   // requests at the same time
}

// ErrKeyLimits is wrapped by the error of invalid limits.
var ErrKeyLimits = errors.New("invalid limits")

// DecodeKeyLimits decodes and checks limits. It ignores unknown fields.
func DecodeKeyLimits(raw []byte) (KeyLimits, error) {
	var l KeyLimits
	if err := json.Unmarshal(raw, &l); err != nil {
		return KeyLimits{}, fmt.Errorf("%w: %s", ErrKeyLimits, JSONError(err))
	}
	return l, l.Check()
}

// CheckSet returns an error if new limits, a JSON object, have a limit of 0 or null, which would set none.
func CheckSet(raw []byte) error {
	set := map[string]any{}
	_ = json.Unmarshal(raw, &set) // the caller has decoded it
	for field, n := range set {
		if (n == 0.0 || n == nil) && field != "v" && field != "reason" {
			return fmt.Errorf("%w: %s: 0 and null are no limit: leave it out", ErrKeyLimits, field)
		}
	}
	return nil
}

// Check returns an error unless the limits have version 1, at least one is set, and all are
// between 1 and 1e12.
func (l KeyLimits) Check() error {
	if l.V != 1 {
		return fmt.Errorf("%w: version %d, this program reads 1", ErrKeyLimits, l.V)
	}
	some := false
	for _, limit := range []struct {
		name string
		n    int64
	}{{"rpm", l.Requests}, {"input_tpm", l.Input}, {"output_tpm", l.Output}, {"uncached_tpm", l.Uncached}, {"concurrent", l.Concurrent}} {
		if limit.n < 0 || limit.n > maxKeyLimit {
			return fmt.Errorf("%w: %s: %d is not between 1 and %d", ErrKeyLimits, limit.name, limit.n, int64(maxKeyLimit))
		}
		some = some || limit.n > 0
	}
	if !some {
		return fmt.Errorf("%w: none is set; set rpm, input_tpm, output_tpm, uncached_tpm or concurrent", ErrKeyLimits)
	}
	return nil
}

// ValidKeyName reports whether s can be the name of an API key: 1 to 64 visible ASCII characters
// without a slash.
func ValidKeyName(s string) bool {
	return s != "" && len(s) <= 64 && !strings.ContainsFunc(s, func(r rune) bool { return r <= ' ' || r > '~' || r == '/' })
}

// KeyUse is the use of one API key. Tokens are those that engines reported.
type KeyUse struct {
	Requests int64 `json:"requests"` // ended requests, without refused ones
	Input    int64 `json:"input_tokens"`
	Cached   int64 `json:"cached_tokens"` // of Input
	Output   int64 `json:"output_tokens"`
	Refused  int64 `json:"refused"` // requests above a limit
}

// Add adds another use.
func (u *KeyUse) Add(o KeyUse) {
	u.Requests += o.Requests
	u.Input += o.Input
	u.Cached += o.Cached
	u.Output += o.Output
	u.Refused += o.Refused
}

// KeyUsage is the use of one API key at one proxy, in /usage.
type KeyUsage struct {
	Key      string     `json:"key"`
	Hour     KeyUse     `json:"hour"`             // the last 60 minutes
	InFlight int64      `json:"in_flight"`        // requests; counted only for keys with limits
	Limits   *KeyLimits `json:"limits,omitempty"` // of all proxies together; nil: none
}
