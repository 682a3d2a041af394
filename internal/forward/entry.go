package forward

import (
	"time"

	"github.com/pdmesh/pdmesh/internal/forward/leg"
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
	Status     int
	Outcome    string // see relay.OutcomeOK
	Prefill    string // address, "" if there was none
	Decode     string
	// BeganPrefill and BeganDecode are those of the leg that began a stream which was continued, else "".
	BeganPrefill, BeganDecode string
	// DecodeOnly is why the decode instance served the request without a
	// prefill, "" if it did not.
	DecodeOnly string
	// Elsewhere is why another instance would have been preferred, and in which role;
	// "" if none would; see flow.Route.
	Elsewhere string
	Refused   string    // why it was not admitted, "" if it was: a reason of package admission, or "key_limit_" and a keylimit.Kind
	Attempts  int       // failed legs, also those that were retried
	Failure   leg.Class // of the leg whose failure the client got
	Continued int       // times that the stream went on after its decode leg was lost
	// Late is the status of an error that was sent as an event, because a keep-alive had sent the header
	// before; 0 of any other request. Status is then what the client got.
	Late       int
	KeepAlives int // comments and pings that the proxy sent on its own
	Revision   int64
	BytesIn    int64
	BytesOut   int64
	Start      time.Time
	TTFT       time.Duration // 0 if nothing was committed
	Duration   time.Duration
	// Input, Cached and Output are the tokens of the prompt, those of them that were in the
	// cache of the instance that computed it, and those of the answer; see relay.Tokens. 0 if
	// the engine does not report them.
	Input, Cached, Output int
	Finish                string // finish reason, as the engine reports it; "" if it does not
	TraceID               string // of the trace that the request is part of; "" if there is none
	// FirstToken is when the first content of a stream went out, 0 of anything else.
	FirstToken time.Duration
	// Gap is the time between two events of a stream, on average; 0 of anything else.
	Gap    time.Duration
	Stages stage.Stages
}

// Began returns the instances of the leg that sent the first content.
func (e *Entry) Began() (prefill, decode string) {
	if e.BeganDecode != "" {
		return e.BeganPrefill, e.BeganDecode
	}
	return e.Prefill, e.Decode
}
