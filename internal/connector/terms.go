package connector

import (
	"time"

	"github.com/pdmesh/pdmesh/internal/instance"
)

// Terms are what a flow must know about an instance besides its legs. The zero value has
// no conditions.
type Terms struct {
	// Build is the version that both instances of a pair must have in common. An instance
	// with "" can be paired with any.
	Build string
	// Blocks is the size of KV blocks, in tokens, that both instances of a pair must have
	// in common. An instance with 0 can be paired with any.
	Blocks int
	// Lease is how long prefill keeps a hand-over until decode reads it; 0 if that is not
	// known.
	Lease time.Duration
	// RefusalSpends tells that an instance which refuses a decode leg (4xx, 503) may make
	// prefill free the blocks.
	RefusalSpends bool
	// GivesUp is the stop_reason with which decode gives up an answer, "" if there is none.
	GivesUp string
	// Bootstrap is host:port of the server that has the engine ids of the present life of
	// prefill. Decode needs such an id. "" if the legs need none.
	Bootstrap string
}

// lease is the lease in the record of an instance, 0 if there is none.
func lease(in *instance.Instance) time.Duration {
	return time.Duration(in.Record.KVLease) * time.Second
}
