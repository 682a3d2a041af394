package fakevllm

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"time"
)

// Kind is what a fault does.
type Kind string

// The kinds of faults. Each happens at the fault's stage.
const (
	FaultStatus     Kind = "status"      // answer with Status, Body and Header
	FaultHang       Kind = "hang"        // say nothing more until the client leaves
	FaultReset      Kind = "reset"       // end the connection with RST
	FaultClose      Kind = "close"       // end the connection with FIN; mid-stream that truncates the chunked body
	FaultSlow       Kind = "slow"        // add TTFT and ITL
	FaultErrorEvent Kind = "error_event" // error event and [DONE]; without a stream a 500
	FaultGarbage    Kind = "garbage"     // bytes that are no HTTP, or mid-stream no JSON
	FaultNoKV       Kind = "no_kv"       // leave kv_transfer_params out of the response
	FaultDie        Kind = "die"         // Server.Kill
	FaultAbort      Kind = "abort"       // end with finish_reason abort, as an engine that shuts down; on the two completion routes
	FaultRecomputed Kind = "recomputed"  // end with stop_reason recomputed, as a decode of vllm-ascend that needs room; likewise
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
	Kind Kind
	// Path is the exact path; "" matches the routes that generate, and a path
	// that ends in "*" every path with that prefix.
	Path string
	// Rank is the data-parallel rank that a request must name; "" matches all requests.
	Rank string
	// Nth skips that many less one matching requests: 3 begins at the third.
	Nth int
	// Times is how often it happens; 0 is until cleared, 1 once.
	Times int
	// Probability, if not 0, lets it happen to that share of the matching
	// requests, drawn from a generator seeded with Seed.
	Probability float64
	Seed        uint64

	At     Stage // default AfterRead; AfterRole for FaultErrorEvent, FaultAbort and FaultRecomputed
	Tokens int   // with AfterTokens: how many were sent, default 1

	Status int               // of FaultStatus and FaultErrorEvent, default 500
	Body   string            // default vLLM's error shape for the status
	Header map[string]string // e.g. Retry-After
	TTFT   time.Duration     // of FaultSlow, added once
	ITL    time.Duration     // of FaultSlow, added per token
}

// ErrFault is wrapped by every complaint about a Fault.
var ErrFault = errors.New("invalid fault")

func (f Fault) checked() (Fault, error) {
	switch f.Kind {
	case FaultStatus, FaultHang, FaultReset, FaultClose, FaultSlow, FaultErrorEvent, FaultGarbage, FaultNoKV, FaultDie, FaultAbort, FaultRecomputed:
	default:
		return f, fmt.Errorf("%w: kind %q", ErrFault, f.Kind)
	}
	switch f.At {
	case "":
		f.At = AfterRead
		switch {
		case f.Tokens > 0:
			f.At = AfterTokens
		case f.Kind == FaultErrorEvent, f.ends():
			f.At = AfterRole
		}
	case BeforeRead, AfterRead, AfterHeaders, AfterRole, AfterTokens:
	default:
		return f, fmt.Errorf("%w: stage %q", ErrFault, f.At)
	}
	if f.At == AfterTokens && f.Tokens == 0 {
		f.Tokens = 1
	}
	if f.Kind == FaultStatus {
		if f.Status == 0 {
			f.Status = http.StatusInternalServerError
		}
		if f.Status < 200 || f.Status > 999 {
			return f, fmt.Errorf("%w: status %d", ErrFault, f.Status)
		}
		if f.At != BeforeRead && f.At != AfterRead {
			return f, fmt.Errorf("%w: a status cannot come %s", ErrFault, f.At)
		}
	}
	if f.Probability < 0 || f.Probability > 1 || f.Times < 0 || f.Nth < 0 || f.Tokens < 0 || f.TTFT < 0 || f.ITL < 0 {
		return f, fmt.Errorf("%w: a number is out of range", ErrFault)
	}
	return f, nil
}

// ends tells the faults that end a request by a reason of the engine's own.
func (f *Fault) ends() bool { return f.Kind == FaultAbort || f.Kind == FaultRecomputed }

// script is the list of faults in force.
type script struct {
	mu    sync.Mutex // guards list
	list  []*scripted
	fired int64
}

type scripted struct {
	Fault
	seen, hits int
	rnd        *rand.Rand
}

func (s *script) add(faults []Fault) error {
	checked := make([]*scripted, 0, len(faults))
	for _, f := range faults {
		f, err := f.checked()
		if err != nil {
			return err
		}
		// A predictable generator is the point: a seed repeats a run.
		checked = append(checked, &scripted{Fault: f, rnd: rand.New(rand.NewPCG(f.Seed, 0x9e3779b97f4a7c15))})
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.list = append(s.list, checked...)
	return nil
}

func (s *script) clear() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.list = nil
}

// match picks the fault for a request, nil for none.
func (s *script) match(path, rank string) *Fault {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, f := range s.list {
		if !f.matches(path, rank) || f.Times > 0 && f.hits >= f.Times {
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

func (s *script) firedCount() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.fired
}

func (f *Fault) matches(path, rank string) bool {
	if f.Rank != "" && f.Rank != rank {
		return false
	}
	if f.Path == "" {
		_, generates := apiOf(path)
		return generates
	}
	if prefix, ok := strings.CutSuffix(f.Path, "*"); ok {
		return strings.HasPrefix(path, prefix)
	}
	return path == f.Path
}
