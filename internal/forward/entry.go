package forward

import (
	"time"

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
	// Target is the target of the model route, "" if there is none. PassedOver are the targets that
	// were chosen before and could not serve the request.
	Target     string
	PassedOver []string
	Stream     bool
	// Result is what became of the answer.
	relay.Result
	Prefill string // address, "" if there was none
	Decode  string
	// BeganPrefill and BeganDecode are those of the leg that began a stream which was continued, else "".
	BeganPrefill, BeganDecode string
	// DecodeOnly is why the decode instance served the request without a
	// prefill, "" if it did not.
	DecodeOnly string
	// Elsewhere is why another instance would have been preferred, and in which role;
	// "" if none would; see flow.Route.
	Elsewhere  string
	Refused    string // why it was not admitted, "" if it was: a reason of package admission, or "key_limit_" and a keylimit.Kind
	Attempts   int    // failed legs, also those that were retried
	Continued  int    // times that the stream went on after its decode leg was lost
	KeepAlives int    // comments and pings that the proxy sent on its own
	Revision   int64
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
