package openai

import (
	"encoding/hex"
	"strings"
)

// A response on /v1/responses is stored in the instance that made it. The proxy keeps
// no list of them: the id that it assigns to a response names its instance, for every
// proxy and after a restart.
const responsePrefix = "resp_"

// The two parts of an id behind its prefix, in hexadecimal digits.
const (
	responseKeyLen = 32
	holderLen      = 8
)

// ResponseID is the id of a response that the instance with this address will make. key
// is a random text of 32 hexadecimal digits.
func ResponseID(key, address string) string { return responsePrefix + key + holder(address) }

// HolderOf reports whether an id is one that ResponseID made for this address.
func HolderOf(id, address string) bool {
	made, ok := madeHere(id)
	return ok && made == holder(address)
}

// MadeHere reports whether an id has the form of ResponseID.
func MadeHere(id string) bool {
	_, ok := madeHere(id)
	return ok
}

func madeHere(id string) (holder string, ok bool) {
	rest, ok := strings.CutPrefix(id, responsePrefix)
	if !ok || len(rest) != responseKeyLen+holderLen {
		return "", false
	}
	_, err := hex.DecodeString(rest)
	return rest[responseKeyLen:], err == nil
}

// holder is FNV-1a with 32 bits, in hexadecimal digits.
func holder(address string) string {
	const offset, prime, digits = 2166136261, 16777619, "0123456789abcdef"
	h := uint32(offset)
	for i := range len(address) {
		h = (h ^ uint32(address[i])) * prime
	}
	var text [holderLen]byte
	for i := holderLen - 1; i >= 0; i-- {
		text[i] = digits[h&0xf]
		h >>= 4
	}
	return string(text[:])
}
