package leg

import (
	"net/http"
	"net/textproto"
	"strings"

	"github.com/pdmesh/pdmesh/internal/connector"
)

// hopByHop reports whether a header is about one connection only (RFC 9110, 7.6.1), or is
// set again for the next connection.
func hopByHop(name string) bool {
	switch name {
	case "Connection", "Proxy-Connection", "Keep-Alive", "Proxy-Authenticate", "Proxy-Authorization",
		"Te", "Trailer", "Transfer-Encoding", "Upgrade", "Content-Length", "Host":
		return true
	}
	return false
}

// private reports whether a client's header must not reach an engine: it is the proxy's
// own, may hold the admin key, or controls routing inside the fleet.
func private(name string) bool {
	switch name {
	case "X-Api-Key", "X-Request-Id", "Expect", "Accept-Encoding", "X-Encoder-Hosts-Ports", "X-Kv-Cache-Source-Host-Port":
		return true
	case "Origin": // the proxy decides which pages may read an answer
		return true
	}
	return strings.HasPrefix(name, "X-Pd-") || strings.HasPrefix(name, "X-Prefiller-") || strings.HasPrefix(name, "X-Data-Parallel-")
}

// notForEngines reports whether a client's header is not sent to engines. A name with _
// counts as the name with -: servers with Python's gateway interfaces may confuse the two.
func notForEngines(name string) bool {
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
	return len(name) == len(priorityHeader) && strings.EqualFold(strings.ReplaceAll(name, "_", "-"), priorityHeader)
}

// Header is the header of one leg.
type Header struct {
	fields http.Header
	ownKey bool // see authorize
}

// NewHeader returns a leg's header, made from the client's. id is its X-Request-Id; more
// are fields of this leg only.
func (o *Origin) NewHeader(id string, more ...connector.Field) Header {
	out := make(http.Header, len(o.Header)+4+len(more)) // with an id, a key, a user agent and a trace
	for name, values := range o.Header {
		if notForEngines(name) || isPriority(name) && !o.Privileged() {
			continue
		}
		out[name] = values
	}
	DropNamed(out, o.Header["Connection"])
	out["X-Request-Id"] = []string{id}
	for _, f := range more {
		out[textproto.CanonicalMIMEHeaderKey(f.Name)] = []string{f.Value}
	}
	ownKey := o.authorize(out)
	if _, ok := out["User-Agent"]; !ok {
		out["User-Agent"] = nil // an absent one stays absent
	}
	return Header{out, ownKey}
}

// Without removes a field.
func (h Header) Without(name string) Header {
	delete(h.fields, name)
	return h
}

// DropNamed removes the fields that a Connection header names: they are about that
// connection only (RFC 9110, 7.6.1).
func DropNamed(h http.Header, connection []string) {
	for _, v := range connection {
		for n := range strings.SplitSeq(v, ",") {
			delete(h, textproto.CanonicalMIMEHeaderKey(strings.TrimSpace(n)))
		}
	}
}

// authorize determines the key that the engine gets. A client's key is removed if the proxy
// checks keys, else it is passed on. If no key is left, the engine gets the proxy's key for
// engines. ownKey reports whether the proxy's key was due, even if the proxy has none: then
// the client is not to blame for a refusal.
func (o *Origin) authorize(out http.Header) (ownKey bool) {
	if o.Settings.ClientKeys {
		delete(out, "Authorization")
	}
	if hasKey(out["Authorization"]) {
		return false
	}
	if key := o.Settings.EngineKey; key != "" {
		out["Authorization"] = []string{"Bearer " + key}
	}
	return true
}

// hasKey reports whether there is a key in an Authorization header. Clients
// whose key is not set send "Bearer" without one.
func hasKey(values []string) bool {
	for _, v := range values {
		scheme, rest, _ := strings.Cut(v, " ")
		if strings.TrimSpace(rest) != "" || scheme != "" && !strings.EqualFold(scheme, "bearer") {
			return true
		}
	}
	return false
}

// PassesToClient reports whether an engine's header goes to the client: it is not about the
// connection, nor one that the proxy sets itself.
func PassesToClient(name string) bool {
	return !hopByHop(name) && name != "X-Request-Id" && name != "Date" && !strings.HasPrefix(name, "X-Pd-") &&
		!strings.HasPrefix(name, "Access-Control-")
}
