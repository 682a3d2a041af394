package instance

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"
)

// Role is the task of an instance: to compute the KV cache of a prompt (prefill) or to
// generate the answer (decode).
type Role string

// The roles, spelled as in the etcd keys and the admin routes.
const (
	Prefill Role = "prefill"
	Decode  Role = "decode"
)

// Roles returns every role in display order.
func Roles() []Role { return []Role{Prefill, Decode} }

// ErrRole is wrapped by the error of ParseRole.
var ErrRole = errors.New("unknown role")

// ParseRole parses "prefill" or "decode", in exactly this spelling.
func ParseRole(s string) (Role, error) {
	switch r := Role(s); r {
	case Prefill, Decode:
		return r, nil
	default:
		return "", fmt.Errorf("%w %q: use \"prefill\" or \"decode\"", ErrRole, s)
	}
}

// State is the state in a record.
type State string

// The record states. An absent state in a record means Ready.
const (
	Starting State = "starting"
	Ready    State = "ready"
	Draining State = "draining"
	Down     State = "down"
)

// View is a proxy's assessment of an instance; the empty view means no objection.
type View string

// The views of an instance.
const (
	// Unverified: it has not yet answered /v1/models (a bare or unprobed registration),
	// and is not picked.
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

// Intent is an operator's setting for an instance; the empty intent means "serve".
type Intent string

// The intents.
const (
	Drain   Intent = "drain"
	Cordon  Intent = "cordon"
	Removed Intent = "removed"
)

// Key identifies one membership: an address in a role. It is comparable; counters and
// health records are stored by it.
type Key struct {
	Role    Role
	Address string // canonical host:port, see ParseAddress
}

func (k Key) String() string { return string(k.Role) + "/" + k.Address }

// Instance is one entry of a Snapshot. It is immutable once published: code that changes
// an instance must copy it first.
type Instance struct {
	Key

	// Record is the last good value. For a bare registration it is filled from
	// the key and, once verified, from the proxy's own probe.
	Record Record
	// Verified reports whether the models are known: the record lists them, or this
	// proxy's own probe found them.
	Verified bool

	// ModelsRead reports whether this proxy has read Record.Models from the engine since
	// the record was written.
	ModelsRead bool

	// Learned reports whether the models are from a probe, because the record names none.
	Learned bool

	// Metadata of the key in etcd. Lease 0 means static.
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
	// Reason explains View or Intent. It may quote bytes from etcd, and is therefore
	// already escaped (see Printable).
	Reason string
}

// Static reports whether the key has no lease, so that only an operator ends the
// membership.
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
	// DefaultWeight is the weight of an instance whose record has none.
	DefaultWeight = 100
	// MaxWeight is the largest weight that an operator can set. A record may have a larger
	// one, which is used as it is.
	MaxWeight = 10000
)

// ValidWeight reports whether an operator can set a weight.
func ValidWeight(n int) bool { return n >= 0 && n <= MaxWeight }

// Weight returns the weight of the instance. Picks are in proportion to the weights of
// the instances of a role; an instance of weight 0 is not picked.
func (i *Instance) Weight() int {
	if i.Record.Weight == nil {
		return DefaultWeight
	}
	return *i.Record.Weight
}

// MaxRanks bounds the data-parallel ranks of one instance that are distinguished.
const MaxRanks = 256

// Ranks returns the number of data-parallel ranks to which requests can be sent by their
// number. It is 1 without data parallelism, and with more than MaxRanks ranks, among which
// the engine chooses.
func (i *Instance) Ranks() int {
	if n := i.Record.DPSize; n > 1 && n <= MaxRanks {
		return n
	}
	return 1
}

// Usable reports whether the scheduler may pick the instance, apart from this proxy's
// opinion of its health.
func (i *Instance) Usable() bool { return i.Record.State == Ready && i.wanted() }

// wanted reports whether the instance may be picked if the state in its record allows it.
func (i *Instance) wanted() bool {
	return i.Verified && i.Intent == "" && (i.View == "" || i.View == Orphan) && i.Weight() > 0
}

// Slow reports whether the instance would be usable if it were not down because its engine
// did not answer the agent's probes. The engine may only be busy: the instance is picked
// while no other instance of its role is usable.
func (i *Instance) Slow() bool {
	return i.Record.State == Down && i.Record.Cause == CauseSlow && i.wanted()
}

// ServesModel reports whether the instance lists the model. It is true for the empty
// model, since vLLM accepts requests without one.
func (i *Instance) ServesModel(model string) bool {
	return model == "" || slices.Contains(i.Record.Models, model)
}

// Facts has the results of a probe of an engine.
type Facts struct {
	Models []string // ids of /v1/models in its order, without duplicates
	// ModelsTruncated reports whether /v1/models was longer than the part that was read.
	ModelsTruncated bool
	Roots           []string // the "root" of each model, same order; may hold ""
	MaxModelLen     int      // of the first model, 0 if unknown
	Version         string   // of /version, "" if unknown
	DPSize          int      // data-parallel ranks behind the address, 0 if unknown
	Transfer        string   // KV transfer of the engine: TransferNIXL, or "" if unknown
	// StartedAt is process_start_time_seconds of /metrics, zero if unknown.
	StartedAt time.Time
	// EngineIDs has the engine ids of a Mooncake prefill engine by rank; nil if its bootstrap
	// server was not queried.
	EngineIDs map[string]string
}
