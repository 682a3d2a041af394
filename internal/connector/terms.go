package connector

import (
	"time"

	"github.com/pdmesh/pdmesh/internal/instance"
)

// Terms are what a flow must know of an instance beside its legs. The zero value asks
// for nothing.
type Terms struct {
	// Build is what both of a pair must have in common, "" for one that goes with
	// anybody.
	Build string
	// Blocks is the size of KV blocks that both of a pair must have, in tokens; 0 for one
	// that goes with anybody, or does not say.
	Blocks int
	// Lease is how long prefill keeps what it has handed over until decode comes for
	// it; 0 if that is not known.
	Lease time.Duration
	// RefusalSpends tells that an instance which refuses a decode leg (4xx, 503)
	// may have prefill free its blocks.
	RefusalSpends bool
	// GivesUp is the stop_reason by which decode says that it has given an answer up,
	// "" if it has none.
	GivesUp string
	// Bootstrap is host:port of the server that tells the engine ids of the present
	// life, by which decode is sent to prefill; "" if the legs need none.
	Bootstrap string
}

// lease is what the record of an instance states, 0 if nothing.
func lease(in *instance.Instance) time.Duration {
	return time.Duration(in.Record.KVLease) * time.Second
}
