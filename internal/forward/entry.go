package forward

import (
	"time"

	"github.com/pdmesh/pdmesh/internal/forward/flow"
	"github.com/pdmesh/pdmesh/internal/forward/relay"
	"github.com/pdmesh/pdmesh/internal/forward/stage"
)

// Entry is the record of a request that has ended.
type Entry struct {
	RequestID string
	Client    string
	KeyName   string // name of the client's key; "" if it has none
	Method    string
	Path      string
	Endpoint  string // the route, one of a small fixed set, for metrics
	Model     string // as the client named it
	// Route has the path of the request through the fleet, Result the outcome of the answer.
	flow.Route
	relay.Result
	KeepAlives int   // number of keep-alive comments and pings
	BytesIn    int64 // of the body; see Bytes for the answer
	Start      time.Time
	Duration   time.Duration
	TraceID    string // of the trace that includes the request; "" if there is none
	// FirstToken is the time from Start to the first content of a stream; 0 if there was none.
	FirstToken time.Duration
	Stages     stage.Stages
}

// Began returns the instances of the leg that sent the first content.
func (e *Entry) Began() (prefill, decode string) {
	if e.BeganDecode != "" {
		return e.BeganPrefill, e.BeganDecode
	}
	return e.Prefill, e.Decode
}
