package kvparams

import (
	"math/rand/v2"
	"strconv"
)

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
