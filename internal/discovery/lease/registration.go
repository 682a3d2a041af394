package lease

import (
	"context"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/pdmesh/pdmesh/internal/cli/sleep"
	"github.com/pdmesh/pdmesh/internal/discovery/schema"
	"github.com/pdmesh/pdmesh/internal/instance"
)

// Phase is the progress of a registration.
type Phase string

// The phases of a Registrar.
const (
	Idle          Phase = "idle"           // nothing to register yet, or revoked
	Registering   Phase = "registering"    // no lease or no key yet, or lost
	Registered    Phase = "registered"     // the key is ours, under a valid lease
	Unknown       Phase = "unknown"        // was registered; etcd does not answer, the lease may still exist
	Conflict      Phase = "conflict"       // another party holds the key; it is left as it is
	Overridden    Phase = "overridden"     // an operator removed the instance; waits until that is lifted
	StaticPresent Phase = "static-present" // an operator's static record has this key; it is not overwritten
)

// Holds reports whether the key is in etcd, as far as is known.
func (p Phase) Holds() bool { return p == Registered || p == Unknown }

// Status is a copy of a Registrar's state.
type Status struct {
	Phase       Phase
	LeaseID     int64     // 0 without a lease
	ModRevision int64     // of our key, 0 while it is not ours
	LastRenewal time.Time // last time etcd confirmed the lease, by the local clock
	Err         string    // problem, or which of two keys is removed; "" if there is none

	Registrations int64 // times the key was written by a new lease
	LeasesLost    int64 // times that etcd reported the lease as lost
	Renewals      int64 // renewals confirmed
	RenewalFails  int64 // renewals that failed for another reason than a lost lease
	Conflicts     int64 // times the key turned out to be held by another agent
}

// RegistrarOptions configure a Registrar. Layout, Key and HostID have to be set.
type RegistrarOptions struct {
	Layout schema.Layout
	// Key is the key to register. instance.Both means two keys, written in one transaction under one
	// lease: both, or none while another party holds one. If an operator has removed one, only the
	// other is kept.
	Key instance.Key
	// TTL is that of the lease, default 15 s; etcd grants at least 2 s. The lease is renewed after
	// each third of it.
	TTL time.Duration
	// HostID distinguishes network namespaces: a record with the same key and host and
	// another id was written by an earlier process of this agent and is taken over. If it is
	// empty, no record is taken over.
	HostID string
	Log    logrus.FieldLogger // nil: silent
	// OnEvent is called on each change of phase, one call at a time. It must not
	// block.
	OnEvent func(Status)
}

// settlePoll is the pause between two checks of the status.
const settlePoll = 10 * time.Millisecond

// Settle waits until the last record that was Set is in etcd, or must not be written now. It
// returns false if ctx has ended before.
func (r *Registrar) Settle(ctx context.Context) bool {
	for !r.Arrived() {
		switch r.Status().Phase {
		case Conflict, Overridden, StaticPresent:
			return true
		case Idle, Registering, Registered, Unknown:
		}
		if !sleep.For(ctx, settlePoll) {
			return false
		}
	}
	return true
}
