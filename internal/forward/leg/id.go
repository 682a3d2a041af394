package leg

import (
	"encoding/binary"
	"encoding/hex"
	"math/rand/v2"
	"net/http"
	"strings"
)

// maxID bounds a client's X-Request-Id, in bytes.
const maxID = 200

// RequestID returns the client's own X-Request-Id, or a new one if it sent none that
// is valid in a header and a log line.
func RequestID(h http.Header) string {
	invalid := func(c rune) bool { return c <= ' ' || c > '~' || c == '"' || c == '\\' }
	if id := h.Get("X-Request-Id"); id != "" && len(id) <= maxID && !strings.ContainsFunc(id, invalid) {
		return id
	}
	return newUUID()
}

// EngineID returns the X-Request-Id that engines get in one attempt: the client's id and a
// nonce, so that no two attempts have the same one.
func EngineID(id string) string { return id + "-" + randomHex(4) }

// Key returns the random key of one attempt (connector.Pair): 32 hexadecimal digits.
func Key() string { return randomHex(16) }

// newUUID returns a random UUID (RFC 9562, 5.4).
func newUUID() string {
	b := randomBytes(16)
	b[6], b[8] = b[6]&0x0f|0x40, b[8]&0x3f|0x80
	h := hex.EncodeToString(b)
	return h[:8] + "-" + h[8:12] + "-" + h[12:16] + "-" + h[16:20] + "-" + h[20:]
}

func randomHex(n int) string { return hex.EncodeToString(randomBytes(n)) }

func randomBytes(n int) []byte {
	var b []byte
	for len(b) < n {
		b = binary.NativeEndian.AppendUint64(b, rand.Uint64())
	}
	return b[:n]
}
