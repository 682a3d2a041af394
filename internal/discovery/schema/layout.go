// Package schema defines the keys in etcd, and encodes and decodes their values. It imports neither
// the etcd client nor another package of discovery.
package schema

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/pdmesh/pdmesh/internal/instance"
)

// ErrPrefix is wrapped by every error of NewLayout.
var ErrPrefix = errors.New("invalid etcd prefix")

// DefaultPrefix is the default root of all keys.
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

// Layout builds and parses the keys in etcd. The zero Layout is not usable; see NewLayout.
type Layout struct {
	root string // ends in exactly one slash, so that /pd never matches /pd-old
}

// NewLayout returns the layout below a prefix such as "/pd" or "/pd/". The prefix must start with a
// slash, must not cover all keys in etcd, and must not contain those of Mooncake, which may share
// the etcd.
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

// Root returns the common prefix of all keys, with its trailing slash.
func (l Layout) Root() string { return l.root }

// Instance returns the key of an instance's record.
func (l Layout) Instance(k instance.Key) string {
	return l.root + string(k.Role) + "/" + k.Address
}

// Pending returns the key of an add that waits for its instance.
func (l Layout) Pending(k instance.Key) string {
	return l.root + segPending + string(k.Role) + "/" + k.Address
}

// Override returns the key of an operator's intent for an instance.
func (l Layout) Override(k instance.Key) string {
	return l.root + segOverride + string(k.Role) + "/" + k.Address
}

// Overrides returns the common prefix of all overrides.
func (l Layout) Overrides() string { return l.root + segOverride }

// Document returns the key of a document: k.Role is its folder, and k.Address its name.
func (l Layout) Document(k instance.Key) string { return l.root + k.String() }

// Proxy returns the key of a proxy's presence.
func (l Layout) Proxy(id string) string { return l.root + segProxies + id }

// Load returns the key of a proxy's load digest.
func (l Layout) Load(id string) string { return l.root + segLoad + id }

// Agent returns the key under which an agent reports why its instance is not registered.
func (l Layout) Agent(id string) string { return l.root + segAgents + id }

// Audit returns the key of one audit entry.
func (l Layout) Audit(id string) string { return l.root + segAudit + id }

// Schema returns the key that has the version of this layout.
func (l Layout) Schema() string { return l.root + KeySchema }

// Kept returns the key of the Order by which an operator restores or forgets entries that etcd has
// lost.
func (l Layout) Kept() string { return l.root + keyKept }

// Moves returns the key that holds the last change of a role; see Move.
func (l Layout) Moves() string { return l.root + keyMoves }

// WatchStart returns the first key of the watched range, from decode/ to the end of prefill/. The
// watch is one range, so that events are ordered and transactions arrive whole. In etcd's
// byte order the range covers decode, limits, load, meta, models, override, pending and prefill. It excludes
// audit and the presences in proxies/, which change all the time and do not affect the
// membership. Events of load/ are skipped on arrival.
func (l Layout) WatchStart() string { return l.root + string(instance.Decode) + "/" }

// WatchEnd returns the exclusive end of the watched range.
func (l Layout) WatchEnd() string { return l.root + string(instance.Prefill) + "0" } // '0' follows '/'

// Kind is the kind of value that a key has.
type Kind int

// The kinds of keys.
const (
	KindOther Kind = iota
	KindInstance
	KindPending
	KindOverride
	KindDocument
)

// ListedPrefixes returns the prefixes that a list of the membership reads, besides the keys Schema
// and Kept.
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

// Name is a parsed key. Address is as spelled in the key, unchecked. For a document, Role is the
// folder and Address the name, which may contain slashes.
type Name struct {
	Kind Kind
	instance.Key
}

// Path returns the key without its root.
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

// Parse parses a key. A key outside the root, or in a segment that is not part of the membership,
// has KindOther.
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

// Owns reports whether a key is below the root, in a segment that this layout uses or reserves.
// Other keys below the root belong to another program.
func (l Layout) Owns(key string) bool {
	rest, below := strings.CutPrefix(key, l.root)
	segment, _, deeper := strings.Cut(rest, "/")
	return below && deeper && slices.Contains([]string{
		"prefill", "decode", "both", "pending", "override", "limits", "models", "proxies", "load", "agents", "audit", "meta", "config",
	}, segment)
}

// Version is the major version of the layout and the values that this
// code writes.
const Version = 1

// VersionValue is the value of the schema key.
const VersionValue = `{"v":1}`

// Errors of CheckVersion.
var (
	// ErrNewer means that a newer program has changed the layout; this
	// one reads it as well as it can and writes nothing.
	ErrNewer = errors.New("the keys in etcd are of a newer version")
	// ErrForeign means that another program uses the prefix.
	ErrForeign = errors.New("the keys in etcd are not ours")
)

// CheckVersion checks, by the value of the schema key, whether this code may write below the
// layout's root. It returns nil for this or an older major version, else an error that wraps
// ErrNewer or ErrForeign and names a remedy.
func CheckVersion(l Layout, value []byte) error {
	var schema struct {
		V *int `json:"v"`
	}
	if err := json.Unmarshal(value, &schema); err != nil || schema.V == nil {
		return fmt.Errorf("%w: %s holds %q; use another --etcd-prefix", ErrForeign, l.Schema(), instance.Printable(string(value), 80))
	}
	if *schema.V > Version {
		return fmt.Errorf("%w: %s says version %d, this program writes version %d; upgrade it, or use another --etcd-prefix", ErrNewer, l.Schema(), *schema.V, Version)
	}
	return nil
}

// DefaultTTL is the default TTL of registrations and presences.
const DefaultTTL = 15 * time.Second
