package fakevllm

import (
	"net/http"

	"github.com/pdmesh/pdmesh/sim/fakevllm/pydantic"
)

// Pause is what vLLM 0.33 does in the pause modes abort and wait, and while it sleeps: new
// requests to generate get 503, streams inside a 200, and what a decode was to fetch is
// freed at its prefill. /health says 200 all the same.
func (s *Server) Pause(on bool) { s.pausing.Store(on) }

// paused answers for an engine that is paused.
func (x *exchange) paused(j *job) bool {
	if !x.life.server.pausing.Load() {
		return false
	}
	x.freeRemote(j.KV)
	if j.Stream {
		x.w.Header().Set("Content-Type", "text/event-stream; charset=utf-8")
		x.w.WriteHeader(http.StatusOK)
		x.streaming = true
		x.flush()
	}
	x.fail(&pydantic.Error{Status: http.StatusServiceUnavailable, Kind: "ServiceUnavailableError", Message: "The engine is paused."})
	return true
}
