package openai

import (
	"encoding/hex"
	"hash/fnv"
	"strings"
)

// A response on /v1/responses is stored in the instance that made it. The proxy keeps
// no list of them: the id that it gives to a response names its instance, for every
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

// HolderOf tells whether an id is one that ResponseID made for this address.
func HolderOf(id, address string) bool {
	made, ok := madeHere(id)
	return ok && made == holder(address)
}

// MadeHere tells whether an id has the form of ResponseID.
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

func holder(address string) string {
	h := fnv.New32a()
	_, _ = h.Write([]byte(address)) // never fails
	return hex.EncodeToString(h.Sum(nil))
}

// MayBeStored tells whether the answer may be asked for later by an id that the client
// did not choose.
func (r *Request) MayBeStored() bool {
	if r.Kind != Responses || r.Raw(FieldRequestID) != nil {
		return false
	}
	store := r.Raw(FieldStore)
	if store == nil || isNull(store) {
		return true
	}
	on, _ := laxBool(store) // was read before
	return on
}

// PreviousResponse is the id of the response that the request goes on from, "" if it
// names none, or none that is a text.
func (r *Request) PreviousResponse() string {
	raw := r.Raw(FieldPreviousResponseID)
	if len(raw) == 0 || raw[0] != '"' {
		return ""
	}
	return string(unquote(raw))
}
