package fakevllm

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/pdmesh/pdmesh/sim/fakevllm/jsontext"
	"github.com/pdmesh/pdmesh/sim/fakevllm/pydantic"
)

// The routes for other processes; no vLLM has them. They are served only with
// Options.Admin, need no key, and are neither recorded nor counted.
const (
	pathFaults = "/fake/faults"
	pathState  = "/fake/state"
)

// faultJSON is a Fault on the wire: durations are strings such as "250ms".
type faultJSON struct {
	Kind        Kind              `json:"kind"`
	Path        string            `json:"path,omitempty"`
	Rank        string            `json:"rank,omitempty"`
	Nth         int               `json:"nth,omitempty"`
	Times       int               `json:"times,omitempty"`
	Probability float64           `json:"probability,omitempty"`
	Seed        uint64            `json:"seed,omitempty"`
	At          Stage             `json:"at,omitempty"`
	Tokens      int               `json:"tokens,omitempty"`
	Status      int               `json:"status,omitempty"`
	Body        string            `json:"body,omitempty"`
	Header      map[string]string `json:"header,omitempty"`
	TTFT        string            `json:"ttft,omitempty"`
	ITL         string            `json:"itl,omitempty"`
}

// UnmarshalJSON reads a Fault as /fake/faults takes it: fields in lower case,
// durations as strings, no unknown fields.
func (f *Fault) UnmarshalJSON(data []byte) error {
	var w faultJSON
	if err := unmarshalStrict(data, &w); err != nil {
		return err
	}
	*f = Fault{
		Kind: w.Kind, Path: w.Path, Rank: w.Rank, Nth: w.Nth, Times: w.Times, Probability: w.Probability, Seed: w.Seed,
		At: w.At, Tokens: w.Tokens, Status: w.Status, Body: w.Body, Header: w.Header,
	}
	for _, d := range []struct {
		text string
		into *time.Duration
	}{{w.TTFT, &f.TTFT}, {w.ITL, &f.ITL}} {
		if d.text == "" {
			continue
		}
		v, err := time.ParseDuration(d.text)
		if err != nil {
			return fmt.Errorf("%w: %w", ErrFault, err)
		}
		*d.into = v
	}
	return nil
}

// MarshalJSON is the inverse of UnmarshalJSON.
func (f Fault) MarshalJSON() ([]byte, error) { return json.Marshal(f.wire()) }

func (f Fault) wire() faultJSON {
	w := faultJSON{
		Kind: f.Kind, Path: f.Path, Rank: f.Rank, Nth: f.Nth, Times: f.Times, Probability: f.Probability, Seed: f.Seed,
		At: f.At, Tokens: f.Tokens, Status: f.Status, Body: f.Body, Header: f.Header,
	}
	if f.TTFT > 0 {
		w.TTFT = f.TTFT.String()
	}
	if f.ITL > 0 {
		w.ITL = f.ITL.String()
	}
	return w
}

func unmarshalStrict(data []byte, into any) error {
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.DisallowUnknownFields()
	if err := dec.Decode(into); err != nil {
		return fmt.Errorf("%w: %w", ErrFault, err)
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return fmt.Errorf("%w: something follows the JSON value", ErrFault)
	}
	return nil
}

// State is what GET /fake/state answers.
type State struct {
	EngineID     string   `json:"engine_id"`
	Role         Role     `json:"role"`
	Mode         Mode     `json:"mode"`
	Address      string   `json:"address"`
	SideChannel  int      `json:"side_channel,omitempty"`
	Bootstrap    int      `json:"bootstrap,omitempty"`
	Ranks        []Rank   `json:"ranks"`
	Counters     Counters `json:"counters"`
	Aborted      []string `json:"aborted"`
	Violations   []string `json:"violations"`
	BadHandovers []string `json:"bad_handovers"`
	Refusals     []string `json:"refusals"`
	Faults       []Fault  `json:"faults"`
}

// State reads everything an outside test may want to know.
func (s *Server) State() State {
	return State{
		EngineID: s.EngineID(), Role: s.opt.Role, Mode: s.opt.Mode, Address: s.Address(), SideChannel: s.SideChannel(), Bootstrap: s.Bootstrap(),
		Ranks: s.Ranks(), Counters: s.Counters(), Aborted: s.Aborted(), Violations: s.Violations(),
		BadHandovers: s.BadHandovers(), Refusals: s.Refusals(), Faults: s.faults.all(),
	}
}

func (s *script) all() []Fault {
	s.mu.Lock()
	defer s.mu.Unlock()
	list := make([]Fault, 0, len(s.list))
	for _, f := range s.list {
		list = append(list, f.Fault)
	}
	return list
}

func (s *Server) serveAdmin(w http.ResponseWriter, r *http.Request) {
	switch {
	case r.URL.Path == pathState && r.Method == http.MethodGet:
		b, err := json.Marshal(s.State())
		if err != nil {
			pydantic.WriteJSON(w, http.StatusInternalServerError, []byte(`{"detail":"the state cannot be encoded"}`))
			return
		}
		pydantic.WriteJSON(w, http.StatusOK, b)
	case r.URL.Path == pathFaults && r.Method == http.MethodDelete:
		s.ClearFaults()
		w.WriteHeader(http.StatusNoContent)
	case r.URL.Path == pathFaults && r.Method == http.MethodPost:
		if err := s.scriptJSON(r.Body); err != nil {
			b := append([]byte(nil), `{"detail":`...)
			pydantic.WriteJSON(w, http.StatusBadRequest, append(jsontext.AppendString(b, err.Error()), '}'))
			return
		}
		w.WriteHeader(http.StatusNoContent)
	default:
		pydantic.WriteJSON(w, http.StatusMethodNotAllowed, []byte(`{"detail":"Method Not Allowed"}`))
	}
}

// scriptJSON takes one fault or a list of them.
func (s *Server) scriptJSON(body io.Reader) error {
	data, err := io.ReadAll(io.LimitReader(body, 1<<20))
	if err != nil {
		return fmt.Errorf("%w: %w", ErrFault, err)
	}
	var faults []Fault
	if i := pydantic.SkipSpace(data, 0); i < len(data) && data[i] == '[' {
		err = unmarshalStrict(data, &faults)
	} else {
		faults = make([]Fault, 1)
		err = unmarshalStrict(data, &faults[0])
	}
	if err != nil {
		return err
	}
	return s.Script(faults...)
}
