// Package schema is the layout of the keys in etcd and the codec of their values. It is
// pure: it knows no etcd client, and no other package of discovery.
package schema

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/pdmesh/pdmesh/internal/instance"
)

// ErrPrefix is wrapped by every error of NewLayout.
var ErrPrefix = errors.New("invalid etcd prefix")

// DefaultPrefix is the root under which all keys live by default.
const DefaultPrefix = "/pd"

// The first path segments below the root.
const (
	segAgents   = "agents/"
	segAudit    = "audit/"
	segOverride = "override/"
	segPending  = "pending/"
	segProxies  = "proxies/"
	segLoad     = "load/"
	KeySchema   = "meta/schema"
	keyKept     = "meta/kept"
	keyMoves    = "meta/moves"
)

// The folders of documents: settings of the fleet that apply to more than one instance.
const (
	Limits instance.Role = "limits" // limits of API keys, by the name of the key
	Models instance.Role = "models" // model routes, by the name of the model
)

// Folders returns the folders of documents.
func Folders() []instance.Role { return []instance.Role{Limits, Models} }

// Layout knows where every key is. The zero Layout is not usable; see NewLayout.
type Layout struct {
	root string // ends in exactly one slash, so that /pd never matches /pd-old
}

// NewLayout checks a prefix such as "/pd" or "/pd/" and makes the layout below
// it. The prefix starts with a slash, is not the root of all keys, and stays
// clear of the keys that Mooncake keeps in the same etcd.
func NewLayout(prefix string) (Layout, error) {
	bad := func(why string) (Layout, error) {
		return Layout{}, fmt.Errorf("%w %q: %s", ErrPrefix, instance.Printable(prefix, 80), why)
	}
	trimmed := strings.Trim(prefix, "/")
	switch {
	case trimmed == "":
		return bad("it would cover every key in etcd; use a name such as " + DefaultPrefix)
	case len(prefix) > 200:
		return bad("longer than 200 bytes")
	case !strings.HasPrefix(prefix, "/"):
		return bad("start it with a slash, as in /" + trimmed)
	case strings.Contains(prefix, "//"):
		return bad("it has an empty part between two slashes")
	}
	for _, c := range []byte(trimmed) {
		if c <= ' ' || c >= 0x7f {
			return bad("use letters, digits and punctuation of ASCII only")
		}
	}
	first, _, _ := strings.Cut(trimmed, "/")
	if first == "mooncake" || strings.HasPrefix(first, "mooncake-") || first == "oplog" {
		return bad("these keys belong to Mooncake; use another name such as " + DefaultPrefix)
	}
	return Layout{root: "/" + trimmed + "/"}, nil
}

// Root is the common prefix of all keys, with its trailing slash.
func (l Layout) Root() string { return l.root }

// Instance is the key of an instance's record.
func (l Layout) Instance(k instance.Key) string {
	return l.root + string(k.Role) + "/" + k.Address
}

// Pending is the key of an add that waits for its instance.
func (l Layout) Pending(k instance.Key) string {
	return l.root + segPending + string(k.Role) + "/" + k.Address
}

// Override is the key of an operator's intent for an instance.
func (l Layout) Override(k instance.Key) string {
	return l.root + segOverride + string(k.Role) + "/" + k.Address
}

// Overrides is the common prefix of all overrides.
func (l Layout) Overrides() string { return l.root + segOverride }

// Document is the key of a document: k.Role is its folder, and k.Address its name.
func (l Layout) Document(k instance.Key) string { return l.root + k.String() }

// Proxy is the key of a proxy's presence.
func (l Layout) Proxy(id string) string { return l.root + segProxies + id }

// Load is the key under which a proxy reports what it has in flight.
func (l Layout) Load(id string) string { return l.root + segLoad + id }

// Agent is the key under which an agent reports whether its instance is not registered.
func (l Layout) Agent(id string) string { return l.root + segAgents + id }

// Audit is the key of one audit entry.
func (l Layout) Audit(id string) string { return l.root + segAudit + id }

// Schema is the key that names the version of this layout.
func (l Layout) Schema() string { return l.root + KeySchema }

// Kept is the key by which an operator decides what proxies do with
// what they keep active although etcd has lost it.
func (l Layout) Kept() string { return l.root + keyKept }

// Moves is the key that holds the last change of a role; see Move.
func (l Layout) Moves() string { return l.root + keyMoves }

// WatchStart is the first key of the watched range, from decode/ to the end of prefill/. The
// watch is one range, so that events are ordered and transactions arrive whole. In etcd's
// byte order the range covers decode, limits, load, meta, models, override, pending and prefill. It excludes
// audit and the presences in proxies/, which change all the time and do not affect the
// membership. Events of load/ are skipped on arrival.
func (l Layout) WatchStart() string { return l.root + string(instance.Decode) + "/" }

// WatchEnd is the end of the watched range, which does not include it.
func (l Layout) WatchEnd() string { return l.root + string(instance.Prefill) + "0" } // '0' follows '/'

// Kind reports what a key is about.
type Kind int

// The kinds.
const (
	KindOther Kind = iota
	KindInstance
	KindPending
	KindOverride
	KindDocument
)

// ListedPrefixes are what a list of the membership reads, besides the schema key.
func (l Layout) ListedPrefixes() []string {
	return []string{
		l.root + string(instance.Decode) + "/",
		l.root + string(Limits) + "/",
		l.root + string(Models) + "/",
		l.root + segOverride,
		l.root + segPending,
		l.root + string(instance.Prefill) + "/",
	}
}

// Name is a key taken apart. Address is as spelled in the key, unchecked. Of a document Role is
// the folder, and Address the name, which may contain slashes.
type Name struct {
	Kind Kind
	instance.Key
}

// Path is the key without its root.
func (n Name) Path() string {
	switch n.Kind {
	case KindPending:
		return segPending + n.String()
	case KindOverride:
		return segOverride + n.String()
	case KindOther:
		return n.Address
	default:
		return n.String()
	}
}

// Text returns the path in printable form.
func (n Name) Text() string { return instance.Printable(n.Path(), 400) }

// Parse takes a key apart. Keys outside the root, in a segment we do not read,
// or deeper than they should be are KindOther.
func (l Layout) Parse(key string) Name {
	rest, ok := strings.CutPrefix(key, l.root)
	if !ok {
		return Name{}
	}
	n := Name{Kind: KindInstance}
	if r, ok := strings.CutPrefix(rest, segPending); ok {
		n.Kind, rest = KindPending, r
	} else if r, ok := strings.CutPrefix(rest, segOverride); ok {
		n.Kind, rest = KindOverride, r
	}
	role, address, ok := strings.Cut(rest, "/")
	if !ok {
		return Name{}
	}
	switch r := instance.Role(role); r {
	case instance.Prefill, instance.Decode:
		n.Role, n.Address = r, address
		return n
	case Limits, Models:
		if n.Kind != KindInstance || address == "" {
			return Name{}
		}
		return Name{KindDocument, instance.Key{Role: r, Address: address}}
	default:
		return Name{}
	}
}

// Owns reports whether a key below the root is in a place that this layout uses,
// now or for what reads along: a program that finds another key there has found
// another party's data.
func (l Layout) Owns(key string) bool {
	rest, below := strings.CutPrefix(key, l.root)
	segment, _, deeper := strings.Cut(rest, "/")
	return below && deeper && slices.Contains([]string{
		"prefill", "decode", "both", "pending", "override", "limits", "models", "proxies", "load", "agents", "audit", "meta", "config",
	}, segment)
}
