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
	KeyName   string // of the client's key, "" for one without a name
	Method    string
	Path      string
	Endpoint  string // the route, for metrics: one of a fixed few
	Model     string // as the client named it
	// Route is where the request went, and Result what became of the answer.
	flow.Route
	relay.Result
	KeepAlives int   // comments and pings that the proxy sent on its own
	BytesIn    int64 // of the body; see Bytes for the answer
	Start      time.Time
	Duration   time.Duration
	TraceID    string // of the trace that the request is part of; "" if there is none
	// FirstToken is when the first content of a stream went out, 0 of anything else.
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
