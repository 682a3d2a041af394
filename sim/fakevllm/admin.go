package fakevllm

import (
	"encoding/json"
	"net/http"

	"github.com/pdmesh/pdmesh/sim/fakevllm/jsontext"
	"github.com/pdmesh/pdmesh/sim/fakevllm/pydantic"
)

// The routes for other processes; no vLLM has them. They are served only with
// Options.Admin, need no key, and are neither recorded nor counted.
const (
	pathFaults = "/fake/faults"
	pathState  = "/fake/state"
)

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
