package instance

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"
)

// Role is what an instance does for a request: compute the KV cache of the
// prompt (prefill) or generate the answer (decode).
type Role string

// The roles, spelled as in the etcd keys and the admin routes.
const (
	Prefill Role = "prefill"
	Decode  Role = "decode"
)

// Roles lists every role in display order.
func Roles() []Role { return []Role{Prefill, Decode} }

// ErrRole is wrapped by the error of ParseRole.
var ErrRole = errors.New("unknown role")

// ParseRole accepts "prefill" and "decode", exactly.
func ParseRole(s string) (Role, error) {
	switch r := Role(s); r {
	case Prefill, Decode:
		return r, nil
	default:
		return "", fmt.Errorf("%w %q: use \"prefill\" or \"decode\"", ErrRole, s)
	}
}

// State is the state that the record itself declares.
type State string

// The record states. An absent state in a record means Ready.
const (
	Starting State = "starting"
	Ready    State = "ready"
	Draining State = "draining"
	Down     State = "down"
)

// View is this proxy's own opinion; the empty view means "nothing to object".
type View string

// The views.
const (
	// Unverified: no proxy has seen it answer /v1/models (a bare or
	// unprobed registration); it is not picked.
	Unverified View = "unverified"
	// Orphan: its lease was lost but its probes still pass.
	Orphan View = "orphan"
	// Ejected: this proxy found it unreachable or failing.
	Ejected View = "ejected"
	// Sleeping and Paused: its engine reports that it was put to sleep or paused, and runs no
	// requests until it is woken up or resumed.
	Sleeping View = "sleeping"
	Paused   View = "paused"
	// Rejected: its value in etcd cannot be used and no earlier good value is known.
	Rejected View = "rejected"
	// Elsewhere: it belongs to the fleet of another proxy, see Record.Proxies.
	Elsewhere View = "elsewhere"
	// Pending: an add that waits for its instance to answer.
	Pending View = "pending"
)

// Intent is what an operator asked for; the empty intent means "serve".
type Intent string

// The intents.
const (
	Drain   Intent = "drain"
	Cordon  Intent = "cordon"
	Removed Intent = "removed"
)

// Key names one membership: an address in a role. It is comparable and is the
// identity that counters and health records are kept under.
type Key struct {
	Role    Role
	Address string // canonical host:port, see ParseAddress
}

func (k Key) String() string { return string(k.Role) + "/" + k.Address }

// Instance is one entry of a Snapshot. It is immutable once published: whatever
// wants to change one copies it first.
type Instance struct {
	Key

	// Record is the last good value. For a bare registration it is filled from
	// the key and, once verified, from the proxy's own probe.
	Record Record
	// Bare reports whether the value in etcd was empty or plain text.
	Bare bool
	// Verified reports whether the models are known: the record lists them, or this
	// proxy's own probe found them.
	Verified bool

	// ModelsRead is set if Record.Models is what this proxy has read from the engine since
	// the record was written.
	ModelsRead bool

	// Learned reports that the models are those of a probe: the record names none.
	Learned bool

	// As in the etcd key-value. Lease 0 means static.
	Lease          int64
	CreateRevision int64
	ModRevision    int64
	Version        int64

	View   View
	Intent Intent
	// MoveAfter is how long after a drain the streams that still run move to other instances; nil if
	// they stay.
	MoveAfter *time.Duration
	// OnlyRole is the role that a drain leaves to an engine in both roles; "" for any other intent.
	OnlyRole Role
	// AutoRole reports whether a proxy set OnlyRole, not an operator.
	AutoRole bool
	// TimedWeight reports whether the weight is an operator's, with a time limit.
	TimedWeight bool
	// Reason describes why View or Intent is what it is; may quote bytes
	// from etcd and is therefore escaped already (see Printable).
	Reason string
}

// Static reports whether nothing but an operator ends this membership: its record
// has no lease.
func (i *Instance) Static() bool { return i.Lease == 0 }

// CanVanish reports whether the instance vanishes if it leaves the membership now: only its lease
// keeps it, it is ready or down, and no operator has an intent for it.
func (i *Instance) CanVanish() bool {
	return !i.Static() && i.View != Pending && i.View != Rejected && i.Intent == "" && (i.Record.State == Ready || i.Record.State == Down)
}

// Incarnation identifies one start of the engine process: the record's id, or for a
// record without one the create revision of its key.
func (i *Instance) Incarnation() string {
	if i.Record.ID != "" {
		return i.Record.ID
	}
	return "rev-" + strconv.FormatInt(i.CreateRevision, 10)
}

const (
	// DefaultWeight is the weight of an instance that has none of its own.
	DefaultWeight = 100
	// MaxWeight is the largest weight that an operator can set. A record may have a larger
	// one, which is used as it is.
	MaxWeight = 10000
)

// ValidWeight reports whether an operator can set a weight.
func ValidWeight(n int) bool { return n >= 0 && n <= MaxWeight }

// Weight is what part of the picks of its role the instance should get, in
// proportion to the weights of the others; with 0 it is not picked.
func (i *Instance) Weight() int {
	if i.Record.Weight == nil {
		return DefaultWeight
	}
	return *i.Record.Weight
}

// MaxRanks bounds the data-parallel ranks of one instance that are distinguished.
const MaxRanks = 256

// Ranks is how many data-parallel ranks behind the address a request can be sent to,
// each by its number. Of an instance with more than MaxRanks it is 1, as of one without
// data parallelism: its engine chooses the rank.
func (i *Instance) Ranks() int {
	if n := i.Record.DPSize; n > 1 && n <= MaxRanks {
		return n
	}
	return 1
}

// Usable reports whether the scheduler may pick it at all, this proxy's passing
// health opinion aside.
func (i *Instance) Usable() bool { return i.Record.State == Ready && i.wanted() }

// wanted reports whether nothing but the state of its engine speaks against picking it.
func (i *Instance) wanted() bool {
	return i.Verified && i.Intent == "" && (i.View == "" || i.View == Orphan) && i.Weight() > 0
}

// Slow reports whether the instance would be usable, but its agent says down because its
// engine left probes unanswered. It may only be busy: it is picked while no other
// instance of its role is usable.
func (i *Instance) Slow() bool {
	return i.Record.State == Down && i.Record.Cause == CauseSlow && i.wanted()
}

// ServesModel reports whether the instance lists the model. It is true for the empty
// model, since vLLM accepts requests without one.
func (i *Instance) ServesModel(model string) bool {
	return model == "" || slices.Contains(i.Record.Models, model)
}

// Facts is what a probe of an engine finds out.
type Facts struct {
	Models []string // every id of /v1/models once, in its order
	// ModelsTruncated is set if /v1/models was longer than what was read of it.
	ModelsTruncated bool
	Roots           []string // the "root" of each model, same order; may hold ""
	MaxModelLen     int      // of the first model, 0 if unknown
	Version         string   // of /version, "" if unknown
	DPSize          int      // data-parallel ranks behind the address, 0 if unknown
	Transfer        string   // how it hands over: TransferNIXL, or "" if it does not show
	// StartedAt is process_start_time_seconds of /metrics, zero if unknown.
	StartedAt time.Time
	// EngineIDs are those of a Mooncake prefill engine by rank, nil if no request was sent to its
	// bootstrap server.
	EngineIDs map[string]string
}
