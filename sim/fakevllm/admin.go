package fakevllm

import (
	"encoding/json"
	"net/http"

	"github.com/pdmesh/pdmesh/sim/fakevllm/jsontext"
	"github.com/pdmesh/pdmesh/sim/fakevllm/pydantic"
	"github.com/pdmesh/pdmesh/sim/fakevllm/record"
)

// The routes for other processes; no vLLM has them. They are served only with
// Options.Admin, need no key, and are neither recorded nor counted.
const (
	pathFaults = "/fake/faults"
	pathState  = "/fake/state"
)

// Request is one request as it arrived, before anything looked at it.
type Request = record.Request

// Requests lists what arrived, oldest first, as far as the record reaches.
// The bodies are shared: don't change them.
func (s *Server) Requests() []Request { return s.record.All() }

// ForgetRequests empties the record.
func (s *Server) ForgetRequests() { s.record.Forget() }

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
		BadHandovers: s.BadHandovers(), Refusals: s.Refusals(), Faults: s.faults.All(),
	}
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
		if err := s.faults.Read(r.Body); err != nil {
			b := append([]byte(nil), `{"detail":`...)
			pydantic.WriteJSON(w, http.StatusBadRequest, append(jsontext.AppendString(b, err.Error()), '}'))
			return
		}
		w.WriteHeader(http.StatusNoContent)
	default:
		pydantic.WriteJSON(w, http.StatusMethodNotAllowed, []byte(`{"detail":"Method Not Allowed"}`))
	}
}
