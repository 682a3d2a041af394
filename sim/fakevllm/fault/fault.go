// Package fault is the misbehaviour that a test scripts: what happens, to which requests, and when.
package fault

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"
)

// Kind is what a fault does.
type Kind string

// The kinds of faults. Each happens at the fault's stage.
const (
	Status     Kind = "status"      // answer with Status, Body and Header
	Hang       Kind = "hang"        // say nothing more until the client leaves
	Reset      Kind = "reset"       // end the connection with RST
	Close      Kind = "close"       // end the connection with FIN; mid-stream that truncates the chunked body
	Slow       Kind = "slow"        // add TTFT and ITL
	ErrorEvent Kind = "error_event" // error event and [DONE]; without a stream a 500
	Garbage    Kind = "garbage"     // bytes that are no HTTP, or mid-stream no JSON
	NoKV       Kind = "no_kv"       // leave kv_transfer_params out of the response
	Die        Kind = "die"         // Server.Kill
	Abort      Kind = "abort"       // end with finish_reason abort, as an engine that shuts down; each route reports it in its own form
	Recomputed Kind = "recomputed"  // end with stop_reason recomputed, as a decode of vllm-ascend that needs room; on the two completion routes
)

// Stage is when a fault happens.
type Stage string

// The stages, in order. A request without a stream reaches AfterHeaders and
// AfterRole when its headers are out, and AfterTokens at half of its body.
const (
	BeforeRead   Stage = "before_read" // headers are read, the body is not
	AfterRead    Stage = "after_read"
	AfterHeaders Stage = "after_headers"
	AfterRole    Stage = "after_role" // on /v1/completions, which has no role chunk: before the first token
	AfterTokens  Stage = "after_tokens"
)

// Fault is one scripted misbehaviour. The first scripted fault that matches a
// request and fires is the only one to act on it.
type Fault struct {
	Kind Kind `json:"kind"`
	// Path is the exact path; "" matches the routes that generate, and a path
	// that ends in "*" every path with that prefix.
	Path string `json:"path,omitempty"`
	// Rank is the data-parallel rank that a request must name; "" matches all requests.
	Rank string `json:"rank,omitempty"`
	// Nth skips that many less one matching requests: 3 begins at the third.
	Nth int `json:"nth,omitempty"`
	// Times is how often it happens; 0 is until cleared, 1 once.
	Times int `json:"times,omitempty"`
	// Probability, if not 0, lets it happen to that share of the matching
	// requests, drawn from a generator seeded with Seed.
	Probability float64 `json:"probability,omitempty"`
	Seed        uint64  `json:"seed,omitempty"`

	At     Stage `json:"at,omitempty"`     // default AfterRead; AfterRole for ErrorEvent, Abort and Recomputed
	Tokens int   `json:"tokens,omitempty"` // with AfterTokens: how many were sent, default 1

	Status int               `json:"status,omitempty"` // of Status and ErrorEvent, default 500
	Body   string            `json:"body,omitempty"`   // default vLLM's error shape for the status
	Header map[string]string `json:"header,omitempty"` // e.g. Retry-After
	TTFT   time.Duration     `json:"-"`                // of Slow, added once
	ITL    time.Duration     `json:"-"`                // of Slow, added per token
}

// ErrInvalid is wrapped by every complaint about a Fault.
var ErrInvalid = errors.New("invalid fault")

func (f Fault) checked() (Fault, error) {
	switch f.Kind {
	case Status, Hang, Reset, Close, Slow, ErrorEvent, Garbage, NoKV, Die, Abort, Recomputed:
	default:
		return f, fmt.Errorf("%w: kind %q", ErrInvalid, f.Kind)
	}
	switch f.At {
	case "":
		f.At = AfterRead
		switch {
		case f.Tokens > 0:
			f.At = AfterTokens
		case f.Kind == ErrorEvent, f.Ends():
			f.At = AfterRole
		}
	case BeforeRead, AfterRead, AfterHeaders, AfterRole, AfterTokens:
	default:
		return f, fmt.Errorf("%w: stage %q", ErrInvalid, f.At)
	}
	if f.At == AfterTokens && f.Tokens == 0 {
		f.Tokens = 1
	}
	if f.Kind == Status {
		f.Status = cmp.Or(f.Status, http.StatusInternalServerError)
		if f.Status < 200 || f.Status > 999 {
			return f, fmt.Errorf("%w: status %d", ErrInvalid, f.Status)
		}
		if f.At != BeforeRead && f.At != AfterRead {
			return f, fmt.Errorf("%w: a status cannot come %s", ErrInvalid, f.At)
		}
	}
	if f.Probability < 0 || f.Probability > 1 || f.Times < 0 || f.Nth < 0 || f.Tokens < 0 || f.TTFT < 0 || f.ITL < 0 {
		return f, fmt.Errorf("%w: a number is out of range", ErrInvalid)
	}
	return f, nil
}

// Ends reports whether the fault ends a request with a finish or stop reason of the engine.
func (f *Fault) Ends() bool { return f.Kind == Abort || f.Kind == Recomputed }

// fields are the fields of a Fault without its methods.
type fields Fault

// wire is a Fault in JSON: durations are strings such as "250ms".
type wire struct {
	*fields
	TTFT, ITL string
}

// UnmarshalJSON reads a Fault as /fake/faults takes it, without unknown fields.
func (f *Fault) UnmarshalJSON(data []byte) error {
	*f = Fault{}
	w := wire{fields: (*fields)(f)}
	if err := unmarshalStrict(data, &w); err != nil {
		return err
	}
	for text, into := range map[*string]*time.Duration{&w.TTFT: &f.TTFT, &w.ITL: &f.ITL} {
		if *text == "" {
			continue
		}
		v, err := time.ParseDuration(*text)
		if err != nil {
			return fmt.Errorf("%w: %w", ErrInvalid, err)
		}
		*into = v
	}
	return nil
}

func unmarshalStrict(data []byte, into any) error {
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.DisallowUnknownFields()
	if err := dec.Decode(into); err != nil {
		return fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return fmt.Errorf("%w: something follows the JSON value", ErrInvalid)
	}
	return nil
}

// Read adds what a body of /fake/faults holds: one fault or a list of them.
func (s *Script) Read(body io.Reader) error {
	data, err := io.ReadAll(io.LimitReader(body, 1<<20))
	if err != nil {
		return fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	var faults []Fault
	if bytes.HasPrefix(bytes.TrimSpace(data), []byte("[")) {
		err = unmarshalStrict(data, &faults)
	} else {
		faults = make([]Fault, 1)
		err = unmarshalStrict(data, &faults[0])
	}
	if err != nil {
		return err
	}
	return s.Add(faults)
}
