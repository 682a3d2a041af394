package openai

import (
	"encoding/hex"
	"hash/fnv"
	"strconv"
	"strings"
)

// A response on /v1/responses is stored in the instance that made it. The proxy keeps no list of
// responses: the id that it assigns to a response names its instance, for every proxy and after a restart.
const responsePrefix = "resp_"

// The lengths of the two parts of an id after its prefix, in hexadecimal digits.
const (
	responseKeyLen = 32
	holderLen      = 8
)

// ResponseID returns the id of a response that the instance with this address will make.
// key is a random text of 32 hexadecimal digits.
func ResponseID(key, address string) string { return responsePrefix + key + holder(address) }

// MayHold reports whether the instance with this address may have the response with this id.
// An id from ResponseID names its instance; a response with any other id may be in each.
func MayHold(address, id string) bool {
	rest, ok := strings.CutPrefix(id, responsePrefix)
	if !ok || len(rest) != responseKeyLen+holderLen {
		return true
	}
	_, err := hex.DecodeString(rest)
	return err != nil || rest[responseKeyLen:] == holder(address)
}

// holder returns the 32-bit FNV-1a hash of an address, in hexadecimal digits.
func holder(address string) string {
	h := fnv.New32a()
	_, _ = h.Write([]byte(address))                            // has no error
	return strconv.FormatUint(1<<32|uint64(h.Sum32()), 16)[1:] // with leading zeros
}
