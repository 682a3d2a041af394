package forward

import (
	"math/rand/v2"
	"net/http"
	"net/textproto"
	"strconv"
	"strings"
	"unsafe"

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
	case "X-Api-Key", "X-Request-Id", "Expect", "Accept-Encoding", "X-Encoder-Hosts-Ports", "X-Kv-Cache-Source-Host-Port":
		return true
	}
	return strings.HasPrefix(name, "X-Pd-") || strings.HasPrefix(name, "X-Prefiller-") || strings.HasPrefix(name, "X-Data-Parallel-")
}

// staysHere tells that a client's header does not go to the engines. Servers behind a
// gateway interface of Python may take a header spelt with _ for the one with -.
func staysHere(name string) bool {
	if hopByHop(name) || private(name) {
		return true
	}
	if strings.IndexByte(name, '_') < 0 {
		return false
	}
	name = textproto.CanonicalMIMEHeaderKey(strings.ReplaceAll(name, "_", "-"))
	return hopByHop(name) || private(name)
}

// priorityHeader lets a request overtake others in an engine's queue.
const priorityHeader = "X-Vllm-Priority"

func isPriority(name string) bool {
	return name == priorityHeader || strings.EqualFold(strings.ReplaceAll(name, "_", "-"), priorityHeader)
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

// idRoom is room for the ids of a request without one: a random UUID (RFC 9562, 5.4),
// and its first engineID, which shares its bytes.
type idRoom [len("01234567-0123-0123-0123-0123456789ab-01234567")]byte

// make makes them. They are as good as the room is.
func (r *idRoom) make() (id, engineID string) {
	hi, lo := rand.Uint64(), rand.Uint64()
	hi = hi&^0xf000 | 0x4000
	lo = lo&^(3<<62) | 2<<62
	b := appendHex(r[:0], hi>>32, 8)
	b = appendHex(append(b, '-'), hi>>16, 4)
	b = appendHex(append(b, '-'), hi, 4)
	b = appendHex(append(b, '-'), lo>>48, 4)
	b = appendHex(append(b, '-'), lo, 12)
	n := len(b)
	b = appendNonce(b)
	engineID = unsafe.String(&b[0], len(b))
	return engineID[:n], engineID
}

// appendHex adds the last digits of n.
func appendHex(b []byte, n uint64, digits int) []byte {
	for at := 4 * (digits - 1); at >= 0; at -= 4 {
		b = append(b, hexDigits[n>>at&0xf])
	}
	return b
}

// appendNonce adds what tells one attempt from another.
func appendNonce(id []byte) []byte { return appendHex(append(id, '-'), uint64(rand.Uint32()), 8) }

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
	if c := x.h.lines; c != nil && c.TakesLines(r) && x.joinLines(engineID) {
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

	id    string // clientsID
	json  bool   // Content-Type
	trace bool   // asksTrace
}

// memoPlace gives the place of the memo of the client's connection, if it is worth while
// to have one there.
func (x *exchange) memoPlace() *any {
	w, ok := x.w.(interface {
		Memo() (place *any, again bool)
	})
	if !ok {
		return nil
	}
	place, again := w.Memo()
	if !again {
		return nil
	}
	return place
}

// remember gives what is known of the client's header, nil if it came for the first time.
func (x *exchange) remember() *memo {
	place := x.memoPlace()
	if place == nil {
		return nil
	}
	if m, ok := (*place).(*memo); ok && m.h == x.h {
		return m
	}
	header := x.legHeader("")
	delete(header, "X-Request-Id")
	m := &memo{h: x.h, ownKey: x.ownKey, id: clientsID(x.r.Header), json: isJSON(x.r.Header), trace: asksTrace(x.r.Header)}
	if m.lines.Set(header) != nil || len(m.lines.Text()) > maxKeptLines {
		m.lines, m.none = upstream.Lines{}, true
	}
	*place = m
	return m
}

// isJSON is vLLM's own test of a request: parameters are allowed, spaces are not.
func isJSON(h http.Header) bool {
	name, _, _ := strings.Cut(firstOf(h["Content-Type"]), ";")
	return strings.EqualFold(name, "application/json")
}

func asksTrace(h http.Header) bool {
	v := h["X-Pd-Trace"]
	return len(v) > 0 && v[0] == "1"
}

// joinLines makes the lines of a pair's header of those that its client's connection
// remembers, if it does.
func (x *exchange) joinLines(engineID string) bool {
	if x.headerID == engineID {
		return x.header == nil && len(x.draft.lines.Text()) > 0 // joined for the leg before
	}
	m := x.memo
	if m == nil || m.none {
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
		if staysHere(name) || isPriority(name) && !x.h.opts.Privileged(x.r) {
			continue
		}
		out[name] = values
	}
	dropNamed(out, in["Connection"])
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

// dropNamed takes the fields off a header that Connection names: they end with it
// (RFC 9110, 7.6.1).
func dropNamed(h http.Header, connection []string) {
	for _, v := range connection {
		for n := range strings.SplitSeq(v, ",") {
			delete(h, textproto.CanonicalMIMEHeaderKey(strings.TrimSpace(n)))
		}
	}
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

// lineWriter is a ResponseWriter that takes header lines as they are sent, instead of
// its Header, and one more.
type lineWriter interface {
	WriteLines(status int, lines []byte, name, value string, length int64)
}

// beginAnswer gives the client the engine's status and header. length is the
// Content-Length, -1 to leave it to the server.
func (x *exchange) beginAnswer(resp *upstream.Response, length int64) {
	if x.lines != nil && resp.Memo != nil && len(x.w.Header()) == 0 && !x.traced() {
		if lines, ok := linesOf(resp); ok {
			x.lines.WriteLines(resp.Status, lines, "X-Request-Id", x.entry.RequestID, length)
			return
		}
	}
	x.copyAnswerHeader(resp.Header, length)
	x.w.WriteHeader(resp.Status)
}

// linesOf gives what a client gets of a header that an engine repeats, made once.
func linesOf(resp *upstream.Response) ([]byte, bool) {
	lines, ok := resp.Memo.Load().(*upstream.Lines)
	if !ok {
		header := make(http.Header, len(resp.Header))
		for name, values := range resp.Header {
			if goesOn(name) {
				header[name] = values
			}
		}
		dropNamed(header, resp.Header["Connection"])
		lines = new(upstream.Lines)
		if lines.Set(header) != nil { // it was checked: this cannot be
			return nil, false
		}
		resp.Memo.Store(lines)
	}
	return lines.Text(), true
}

// goesOn tells whether an engine's header goes to the client: it is not about the
// connection, nor one that the proxy gives itself.
func goesOn(name string) bool {
	return !hopByHop(name) && name != "X-Request-Id" && name != "Date" && !strings.HasPrefix(name, "X-Pd-")
}

// copyAnswerHeader gives the client the engine's header. length is the
// Content-Length, -1 to leave it to the server.
func (x *exchange) copyAnswerHeader(from http.Header, length int64) {
	to := x.w.Header()
	for name, values := range from {
		if goesOn(name) {
			to[name] = values
		}
	}
	dropNamed(to, from["Connection"])
	if length >= 0 {
		x.length[0] = strconv.FormatInt(length, 10)
		to["Content-Length"] = x.length[:]
	}
	x.proxyHeader()
}

// traced tells that a client is to hear how its request was routed: everybody is, or it
// asks for that and may know.
func (x *exchange) traced() bool {
	if x.h.opts.TraceAll {
		return true
	}
	if x.memo != nil && !x.memo.trace {
		return false
	}
	return asksTrace(x.r.Header) && x.h.opts.Trace(x.r)
}

// showID tells the client what its request is called.
func (x *exchange) showID() {
	x.shownID[0] = x.entry.RequestID
	x.w.Header()["X-Request-Id"] = x.shownID[:]
}

// proxyHeader adds what the proxy says of the request.
func (x *exchange) proxyHeader() {
	x.showID()
	if !x.traced() {
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
