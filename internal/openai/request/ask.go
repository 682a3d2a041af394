package request

import (
	"bytes"
	"slices"
	"unicode/utf8"
)

// maxAsked is the maximum size in bytes of an invalid body that is sent to an engine.
const maxAsked = 64 << 10

// steering returns the texts that an invalid body must not contain if it is sent to an engine.
// They are the names of the fields that are removed from clients' requests, of the objects
// that may contain them, and of their members. Names that are not listed begin with one of
// these. An engine would compute a background response, although its client got an error.
func steering() [][]byte {
	return [][]byte{
		[]byte("transfer_params"), // kv_ and ec_
		[]byte(bootstrapPrefix), []byte("_bootstrap"), []byte("disagg_"), []byte("priority"), []byte("data_parallel"),
		[]byte("xargs"), []byte("extra_args"), []byte("sampling_params"),
		[]byte(`"background"`), []byte("remote_"), []byte("metaserver"), []byte("consumer_zmq"), []byte("peer_host"), []byte("ec_items"),
	}
}

// MayAsk reports whether a body that is invalid here may be sent to an engine, for the engine's error. It
// would be sent unchanged, and Python's JSON parser accepts more than this package: NaN, UTF-16, UTF-32. So
// the bytes must show all names that an engine could read: the body must be UTF-8 without \u escapes, and
// contain no text of steering. In a body that cannot be parsed, a name and a text cannot be distinguished.
func MayAsk(body []byte) bool {
	if len(body) > maxAsked || bytes.IndexByte(body, 0) >= 0 || !utf8.Valid(body) || bytes.Contains(body, []byte(`\u`)) {
		return false
	}
	return !slices.ContainsFunc(steering(), func(name []byte) bool { return bytes.Contains(body, name) })
}
