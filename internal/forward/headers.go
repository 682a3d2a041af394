package forward

import (
	"encoding/binary"
	"math/rand/v2"
	"net/http"
	"net/textproto"
	"strconv"
	"strings"

	"github.com/google/uuid"

	"github.com/pdmesh/pdmesh/internal/upstream"
)

// hopByHop are the headers that mean one connection only (RFC 9110, 7.6.1),
// and those that the next connection sets itself.
func hopByHop(name string) bool {
	switch name {
	case "Connection", "Proxy-Connection", "Keep-Alive", "Proxy-Authenticate", "Proxy-Authorization",
		"Te", "Trailer", "Transfer-Encoding", "Upgrade", "Content-Length", "Host":
		return true
	}
	return false
}

// private are request headers that a client must not get through to an
// engine: ours, the admin key, and those that steer routing inside the fleet.
func private(name string) bool {
	switch name {
	case "X-Api-Key", "X-Data-Parallel-Rank", "X-Request-Id", "Expect", "Accept-Encoding":
		return true
	}
	return strings.HasPrefix(name, "X-Pd-") || strings.HasPrefix(name, "X-Prefiller-")
}

// maxRequestID bounds what a client may call its request.
const maxRequestID = 200

// clientsID gives the client's own id, "" if it sent none that can stand in a
// header and a log line.
func clientsID(h http.Header) string {
	id := firstOf(h["X-Request-Id"])
	if len(id) > maxRequestID {
		return ""
	}
	for _, c := range []byte(id) {
		if c <= ' ' || c > '~' || c == '"' || c == '\\' {
			return ""
		}
	}
	return id
}

// firstOf is what http.Header.Get gives, for a name spelt as it should be.
func firstOf(values []string) string {
	if len(values) == 0 {
		return ""
	}
	return values[0]
}

const hexDigits = "0123456789abcdef"

// newIDs makes an id for a request without one, a random UUID (RFC 9562, 5.4),
// and its first engineID, which share their bytes.
func newIDs() (id, engineID string) {
	var u uuid.UUID
	binary.NativeEndian.PutUint64(u[:8], rand.Uint64())
	binary.NativeEndian.PutUint64(u[8:], rand.Uint64())
	u[6], u[8] = u[6]&0x0f|0x40, u[8]&0x3f|0x80
	text := make([]byte, 0, len("01234567-0123-0123-0123-0123456789ab-01234567"))
	for i, b := range u {
		if i == 4 || i == 6 || i == 8 || i == 10 {
			text = append(text, '-')
		}
		text = append(text, hexDigits[b>>4], hexDigits[b&0xf])
	}
	n := len(text)
	engineID = string(appendNonce(text))
	return engineID[:n], engineID
}

// appendNonce adds what tells one attempt from another.
func appendNonce(id []byte) []byte {
	id = append(id, '-')
	for n, i := rand.Uint32(), 0; i < 8; i++ {
		id = append(id, hexDigits[n>>28])
		n <<= 4
	}
	return id
}

// pairHeader is legHeader for the two legs of a pair, which share it.
func (x *exchange) pairHeader(engineID string) http.Header {
	if x.header == nil || x.headerID != engineID {
		x.header, x.headerID = x.legHeader(engineID), engineID
		x.borrow().lines.Clear()
	}
	return x.header
}

// giveHeader puts the header of the two legs of a pair into the request of one, as
// lines alone if that is all the upstream client wants.
func (x *exchange) giveHeader(r *upstream.Request, engineID string) {
	r.Lines = &x.borrow().lines
	c, ok := x.h.opts.Upstream.(interface {
		TakesLines(r *upstream.Request) bool
	})
	if ok && c.TakesLines(r) && x.joinLines(engineID) {
		return
	}
	r.Header = x.pairHeader(engineID)
}

// memo is what was made of a client's header: it is kept with the connection, for
// requests that have the same one.
type memo struct {
	h      *Handler
	lines  upstream.Lines // of the legs, without X-Request-Id
	ownKey bool           // exchange.ownKey
	none   bool           // there are no lines that can be kept
}

// joinLines makes the lines of a pair's header of those that its client's connection
// remembers, if it does.
func (x *exchange) joinLines(engineID string) bool {
	if x.headerID == engineID {
		return x.header == nil && len(x.draft.lines.Text()) > 0 // joined for the leg before
	}
	w, ok := x.w.(interface {
		Memo() (place *any, again bool)
	})
	if !ok {
		return false
	}
	place, again := w.Memo()
	if !again {
		return false
	}
	m, ok := (*place).(*memo)
	if !ok || m.h != x.h {
		header := x.legHeader("")
		delete(header, "X-Request-Id")
		m = &memo{h: x.h, ownKey: x.ownKey}
		if m.lines.Set(header) != nil || len(m.lines.Text()) > maxKeptLines {
			m = &memo{h: x.h, none: true}
		}
		*place = m
	}
	if m.none {
		return false
	}
	if x.draft.lines.Join(&m.lines, "X-Request-Id", engineID) != nil {
		return false
	}
	x.ownKey, x.header, x.headerID = m.ownKey, nil, engineID
	return true
}

// legHeader makes the header of the legs out of the client's.
func (x *exchange) legHeader(engineID string) http.Header {
	in := x.r.Header
	out := x.newHeader(len(in) + 2)
	for name, values := range in {
		if hopByHop(name) || private(name) {
			continue
		}
		out[name] = values
	}
	for _, v := range in["Connection"] {
		for n := range strings.SplitSeq(v, ",") {
			delete(out, textproto.CanonicalMIMEHeaderKey(strings.TrimSpace(n)))
		}
	}
	name := x.engineName[:]
	if name[0] != "" { // it stands in an earlier header, which is not changed
		name = make([]string, 1)
	}
	name[0] = engineID
	out["X-Request-Id"] = name
	x.authorize(out)
	if _, ok := out["User-Agent"]; !ok {
		out["User-Agent"] = nil // an absent one stays absent
	}
	return out
}

// authorize applies the rule of the keys: a checked client's key ends here,
// an unchecked one is passed on, the engines' own key fills the gap.
func (x *exchange) authorize(out http.Header) {
	o := &x.h.opts
	if o.ClientKeys {
		delete(out, "Authorization")
	}
	if bearsKey(out["Authorization"]) {
		return
	}
	x.ownKey = true
	if o.EngineKey != "" {
		out["Authorization"] = []string{"Bearer " + o.EngineKey}
	}
}

// bearsKey tells whether there is a key in an Authorization header. Clients
// whose key is not set send the bare word "Bearer".
func bearsKey(values []string) bool {
	for _, v := range values {
		scheme, rest, _ := strings.Cut(v, " ")
		if strings.TrimSpace(rest) != "" || scheme != "" && !strings.EqualFold(scheme, "bearer") {
			return true
		}
	}
	return false
}

// copyAnswerHeader gives the client the engine's header. length is the
// Content-Length, -1 to leave it to the server.
func (x *exchange) copyAnswerHeader(from http.Header, length int64) {
	to := x.w.Header()
	for name, values := range from {
		if hopByHop(name) || name == "X-Request-Id" || name == "Date" || strings.HasPrefix(name, "X-Pd-") {
			continue
		}
		to[name] = values
	}
	if length >= 0 {
		x.length[0] = strconv.FormatInt(length, 10)
		to["Content-Length"] = x.length[:]
	}
	x.traceHeader()
}

// traceHeader tells an entitled client how its request was routed.
func (x *exchange) traceHeader() {
	if v := x.r.Header["X-Pd-Trace"]; len(v) == 0 || v[0] != "1" || !x.h.opts.Trace(x.r) {
		return
	}
	to := x.w.Header()
	to.Set("X-PD-Prefill", x.entry.Prefill)
	to.Set("X-PD-Decode", x.entry.Decode)
	to.Set("X-PD-Policy", "round_robin")
	to.Set("X-PD-Revision", strconv.FormatInt(x.entry.Revision, 10))
	to.Set("X-PD-Attempts", strconv.Itoa(x.entry.Attempts+1))
	if x.entry.Alone != "" {
		to.Set("X-PD-Alone", x.entry.Alone)
	}
}
