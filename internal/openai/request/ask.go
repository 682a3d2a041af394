package request

import (
	"bytes"
	"slices"
	"unicode/utf8"
)

// maxAsked bounds the invalid bodies that an engine is asked about.
const maxAsked = 64 << 10

// steering are the bytes that a body must not hold that an engine is asked about: the
// names of the fields that are taken out of clients' requests, of the objects in which
// they hide, and of what is in them. What has no name of its own there begins with
// one of these. A response in the background would be computed although its client got an error.
func steering() [][]byte {
	return [][]byte{
		[]byte("transfer_params"), // kv_ and ec_
		[]byte(bootstrapPrefix), []byte("_bootstrap"), []byte("disagg_"), []byte("priority"), []byte("data_parallel"),
		[]byte("xargs"), []byte("extra_args"), []byte("sampling_params"),
		[]byte(`"background"`), []byte("remote_"), []byte("metaserver"), []byte("consumer_zmq"), []byte("peer_host"), []byte("ec_items"),
	}
}

// MayAsk reports whether an engine may be asked what is wrong with a body that is invalid
// here. The body would be sent as it is, and Python takes more for JSON than this
// package: NaN, UTF-16, UTF-32. What an engine may read in it must therefore be plain
// from its bytes: it is UTF-8, where no name can be spelt in another way than by its
// bytes or by \u, and none of those occurs in it. Whether they are part of a name or of
// a text cannot be decided in a body that cannot be parsed.
func MayAsk(body []byte) bool {
	if len(body) > maxAsked || bytes.IndexByte(body, 0) >= 0 || !utf8.Valid(body) || bytes.Contains(body, []byte(`\u`)) {
		return false
	}
	return !slices.ContainsFunc(steering(), func(name []byte) bool { return bytes.Contains(body, name) })
}
