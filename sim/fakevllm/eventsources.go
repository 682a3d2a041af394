package fakevllm

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"strings"

	"github.com/pdmesh/pdmesh/sim/fakevllm/kvevents"
	"github.com/pdmesh/pdmesh/sim/fakevllm/pydantic"
)

// KVEvents is vLLM's --kv-events-config.
type KVEvents = kvevents.Config

// minor is the second number of a version, 0 if there is none.
func minor(version string) int {
	rest, _ := strings.CutPrefix(version, "0.")
	rest, _, _ = strings.Cut(rest, ".")
	n, err := strconv.Atoi(rest)
	if err != nil {
		return 0
	}
	return n
}

// ParseKVEvents reads the JSON of --kv-events-config.
func ParseKVEvents(text string) (*KVEvents, error) {
	k, err := kvevents.ParseConfig(text)
	if err != nil {
		return nil, fmt.Errorf("%w: --kv-events-config: %w", ErrOptions, err)
	}
	return k, nil
}

// KVEventSources is where the present life of the engine publishes, as
// GET /kv_event_sources says it; nil for one that does not.
func (s *Server) KVEventSources() *KVEvents {
	if e := s.current().cores[0].events; e != nil {
		conf := e.Config()
		return &conf
	}
	return nil
}

// eventSources answers /kv_event_sources: one entry for each rank.
func (l *life) eventSources(w http.ResponseWriter) {
	sources := map[string]KVEvents{}
	for rank, c := range l.cores {
		if c.events != nil {
			sources[strconv.Itoa(rank)] = c.events.Config()
		}
	}
	b, err := json.Marshal(sources)
	if err != nil {
		panic(err) // numbers and texts
	}
	pydantic.WriteJSON(w, http.StatusOK, b)
}
