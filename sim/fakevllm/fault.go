package fakevllm

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"time"
)

// Kind is the effect of a fault.
type Kind string

// The kinds of faults. Each happens at the fault's stage.
const (
	FaultStatus     Kind = "status"      // answer with Status, Body and Header
	FaultHang       Kind = "hang"        // send nothing more until the client disconnects
	FaultReset      Kind = "reset"       // end the connection with RST
	FaultClose      Kind = "close"       // end the connection with FIN; mid-stream that truncates the chunked body
	FaultSlow       Kind = "slow"        // add TTFT and ITL
	FaultErrorEvent Kind = "error_event" // error event and [DONE]; without a stream a 500
	FaultGarbage    Kind = "garbage"     // bytes that are not HTTP, or mid-stream not JSON
	FaultNoKV       Kind = "no_kv"       // leave kv_transfer_params out of the response
	FaultDie        Kind = "die"         // Server.Kill
	FaultAbort      Kind = "abort"       // end with finish_reason abort, like an engine that shuts down; the form depends on the route
	FaultRecomputed Kind = "recomputed"  // end with stop_reason recomputed, as vllm-ascend's decode without free blocks; on the two completion routes
)

// Stage is the point of a request at which a fault happens.
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
	// Path is an exact path, or a prefix followed by "*"; "" matches the routes
	// that generate.
	Path string `json:"path,omitempty"`
	// Rank is the data-parallel rank that a request must name; "" matches all requests.
	Rank string `json:"rank,omitempty"`
	// Nth is the number of the first matching request that it affects: 3 skips two.
	Nth int `json:"nth,omitempty"`
	// Times is the maximum number of affected requests; 0 means no limit.
	Times int `json:"times,omitempty"`
	// Probability is the share of matching requests that the fault affects, drawn
	// from a generator seeded with Seed; 0 means all.
	Probability float64 `json:"probability,omitempty"`
	Seed        uint64  `json:"seed,omitempty"`

	At     Stage `json:"at,omitempty"`     // default AfterRead; AfterRole for ErrorEvent, Abort and Recomputed
	Tokens int   `json:"tokens,omitempty"` // with AfterTokens: number of tokens sent before; default 1

	Status int               `json:"status,omitempty"` // of Status and ErrorEvent, default 500
	Body   string            `json:"body,omitempty"`   // default vLLM's error shape for the status
	Header map[string]string `json:"header,omitempty"` // e.g. Retry-After
	TTFT   time.Duration     `json:"-"`                // of Slow, added once
	ITL    time.Duration     `json:"-"`                // of Slow, added per token
}

// errFault is wrapped by every error about an invalid Fault.
var errFault = errors.New("invalid fault")

func (f Fault) checked() (Fault, error) {
	switch f.Kind {
	case FaultStatus, FaultHang, FaultReset, FaultClose, FaultSlow, FaultErrorEvent, FaultGarbage, FaultNoKV, FaultDie, FaultAbort, FaultRecomputed:
	default:
		return f, fmt.Errorf("%w: kind %q", errFault, f.Kind)
	}
	switch f.At {
	case "":
		f.At = AfterRead
		switch {
		case f.Tokens > 0:
			f.At = AfterTokens
		case f.Kind == FaultErrorEvent, f.Ends():
			f.At = AfterRole
		}
	case BeforeRead, AfterRead, AfterHeaders, AfterRole, AfterTokens:
	default:
		return f, fmt.Errorf("%w: stage %q", errFault, f.At)
	}
	if f.At == AfterTokens && f.Tokens == 0 {
		f.Tokens = 1
	}
	if f.Kind == FaultStatus {
		f.Status = cmp.Or(f.Status, http.StatusInternalServerError)
		if f.Status < 200 || f.Status > 999 {
			return f, fmt.Errorf("%w: status %d", errFault, f.Status)
		}
		if f.At != BeforeRead && f.At != AfterRead {
			return f, fmt.Errorf("%w: a status cannot come %s", errFault, f.At)
		}
	}
	if f.Probability < 0 || f.Probability > 1 || f.Times < 0 || f.Nth < 0 || f.Tokens < 0 || f.TTFT < 0 || f.ITL < 0 {
		return f, fmt.Errorf("%w: a number is out of range", errFault)
	}
	return f, nil
}

// Ends reports whether the fault ends a request with a finish or stop reason of the engine.
func (f *Fault) Ends() bool { return f.Kind == FaultAbort || f.Kind == FaultRecomputed }

// fields are the fields of a Fault without its methods.
type fields Fault

// wire is a Fault in JSON: durations are strings such as "250ms".
type wire struct {
	*fields
	TTFT, ITL string
}

// UnmarshalJSON decodes a fault in a body of /fake/faults. Unknown fields are an error.
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
			return fmt.Errorf("%w: %w", errFault, err)
		}
		*into = v
	}
	return nil
}

func unmarshalStrict(data []byte, into any) error {
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.DisallowUnknownFields()
	if err := dec.Decode(into); err != nil {
		return fmt.Errorf("%w: %w", errFault, err)
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return fmt.Errorf("%w: something follows the JSON value", errFault)
	}
	return nil
}

// Read adds the faults in a body of /fake/faults: one fault, or a list.
func (s *faultScript) Read(body io.Reader) error {
	data, err := io.ReadAll(io.LimitReader(body, 1<<20))
	if err != nil {
		return fmt.Errorf("%w: %w", errFault, err)
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

// faultScript is the list of faults active. Its zero value is empty.
type faultScript struct {
	mu    sync.Mutex // guards list
	list  []*scriptedFault
	fired int64
}

type scriptedFault struct {
	Fault
	seen, hits int
	rnd        *rand.Rand
}

// Add puts faults behind those active, all or none.
func (s *faultScript) Add(faults []Fault) error {
	checked := make([]*scriptedFault, 0, len(faults))
	for _, f := range faults {
		f, err := f.checked()
		if err != nil {
			return err
		}
		// A predictable generator is the point: a seed repeats a run.
		checked = append(checked, &scriptedFault{Fault: f, rnd: rand.New(rand.NewPCG(f.Seed, 0x9e3779b97f4a7c15))})
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.list = append(s.list, checked...)
	return nil
}

// Clear ends them all; those that happen now go on.
func (s *faultScript) Clear() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.list = nil
}

// Match picks the fault for a request, nil for none. generates reports whether the route generates.
func (s *faultScript) Match(path, rank string, generates bool) *Fault {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, f := range s.list {
		if !f.matches(path, rank, generates) || f.Times > 0 && f.hits >= f.Times {
			continue
		}
		f.seen++
		if f.seen < f.Nth || f.Probability > 0 && f.rnd.Float64() >= f.Probability {
			continue
		}
		f.hits++
		s.fired++
		fault := f.Fault
		return &fault
	}
	return nil
}

// Fired is how many have happened.
func (s *faultScript) Fired() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.fired
}

func (f *Fault) matches(path, rank string, generates bool) bool {
	if f.Rank != "" && f.Rank != rank {
		return false
	}
	if f.Path == "" {
		return generates
	}
	if prefix, ok := strings.CutSuffix(f.Path, "*"); ok {
		return strings.HasPrefix(path, prefix)
	}
	return path == f.Path
}
