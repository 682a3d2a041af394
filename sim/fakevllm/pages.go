package fakevllm

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"

	"github.com/pdmesh/pdmesh/sim/fakevllm/jsontext"
	"github.com/pdmesh/pdmesh/sim/fakevllm/metrics"
	"github.com/pdmesh/pdmesh/sim/fakevllm/pydantic"
)

// get serves the pages that say something of the engine.
func (l *life) get(w http.ResponseWriter, path string) {
	switch path {
	case "/health", "/ping":
		w.Header()["Content-Length"] = []string{"0"}
		w.WriteHeader(http.StatusOK)
	case "/load":
		pydantic.WriteJSON(w, http.StatusOK, []byte(`{"server_load":0}`)) // it is not tracked without an option
	case pathSleeping:
		is := l.server.core()
		pydantic.WriteJSON(w, http.StatusOK, fmt.Appendf(nil, `{"is_sleeping":%t}`, is.Sleeping))
	case pathPaused:
		is := l.server.core()
		pydantic.WriteJSON(w, http.StatusOK, fmt.Appendf(nil, `{"is_paused":%t}`, is.Paused || is.Sleeping || l.server.pausing.Load()))
	case pathEventSources:
		l.eventSources(w)
	case "/tokenizer_info":
		pydantic.WriteJSON(w, http.StatusOK, []byte(`{"tokenizer_class":"FakeTokenizer","max_loras":null,"truncation_side":"right"}`))
	case "/version":
		b := append([]byte(nil), `{"version":`...)
		pydantic.WriteJSON(w, http.StatusOK, append(jsontext.AppendString(b, l.server.opt.Version), '}'))
	case pathModels:
		pydantic.WriteJSON(w, http.StatusOK, l.models())
	case "/metrics":
		b := l.metrics()
		h := w.Header()
		h.Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
		h.Set("Content-Length", strconv.Itoa(len(b)))
		_, _ = w.Write(b)
	}
}

// models returns vLLM's list: one object per served name, all of one root, and one per LoRA
// adapter, whose root is its path.
func (l *life) models() []byte {
	o := &l.server.opt
	loaded := l.adapters.snapshot()
	b := append(make([]byte, 0, 512*(len(o.Models)+len(loaded))), `{"object":"list","data":[`...)
	length := strconv.Itoa(o.MaxModelLen)
	for i, name := range o.Models {
		if i > 0 {
			b = append(b, ',')
		}
		b = l.appendCard(b, name, o.Models[0], "", length)
	}
	for _, one := range loaded {
		b = l.appendCard(append(b, ','), one.name, one.path, o.Models[0], "null")
	}
	return append(b, "]}"...)
}

// appendCard appends one object of the list; parent is "" for a base model.
func (l *life) appendCard(b []byte, name, root, parent, length string) []byte {
	created := l.started.Unix()
	b = append(b, `{"id":`...)
	b = jsontext.AppendString(b, name)
	b = append(b, `,"object":"model","created":`...)
	b = strconv.AppendInt(b, created, 10)
	b = append(b, `,"owned_by":"vllm","root":`...)
	b = jsontext.AppendString(b, root)
	b = append(b, `,"parent":`...)
	if parent == "" {
		b = append(b, "null"...)
	} else {
		b = jsontext.AppendString(b, parent)
	}
	b = append(append(b, `,"max_model_len":`...), length...)
	b = append(b, `,"permission":[{"id":"modelperm-`...)
	b = append(b, strings.ReplaceAll(l.engineID, "-", "")...)
	b = append(b, `","object":"model_permission","created":`...)
	b = strconv.AppendInt(b, created, 10)
	b = append(b, `,"allow_create_engine":false,"allow_sampling":true,"allow_logprobs":true,"allow_search_indices":false,`...)
	return append(b, `"allow_view":true,"allow_fine_tuning":false,"organization":"*","group":null,"is_blocking":false}]}`...)
}

// metrics renders /metrics.
func (l *life) metrics() []byte {
	var b []byte
	switch frozen := l.frozen.Load(); {
	case l.server.opt.DisableLogStats:
	case frozen != nil:
		b = append(b, *frozen...)
	default:
		b = l.coreMetrics()
	}
	return metrics.AppendStart(b, l.started)
}

// coreMetrics renders what the cores report.
func (l *life) coreMetrics() []byte {
	o := &l.server.opt
	b := make([]byte, 0, 16<<10)
	for rank, c := range l.cores {
		m := c.Metrics(l.connector.Handovers(rank).Waiting)
		m.Model, m.Deferred, m.NIXL = o.Models[0], l.count.WaitingForKV.Load(), o.Mode == NIXL
		b = metrics.AppendCore(b, m)
	}
	return b
}

// eventSources answers /kv_event_sources: one entry for each rank.
func (l *life) eventSources(w http.ResponseWriter) {
	sources := map[string]KVEvents{}
	for rank, c := range l.cores {
		if c.Events != nil {
			sources[strconv.Itoa(rank)] = c.Events.Config()
		}
	}
	b, err := json.Marshal(sources)
	if err != nil {
		panic(err) // numbers and texts
	}
	pydantic.WriteJSON(w, http.StatusOK, b)
}

// The routes for other processes; no vLLM has them. They are served only with
// Options.Admin, need no key, and are neither recorded nor counted.
const (
	pathFaults = "/fake/faults"
	pathState  = "/fake/state"
	pathCore   = "/fake/core" // POST a CoreState
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
	case r.URL.Path == pathCore && r.Method == http.MethodPost:
		var is CoreState
		if err := json.NewDecoder(io.LimitReader(r.Body, 1<<10)).Decode(&is); err != nil {
			pydantic.WriteJSON(w, http.StatusBadRequest, []byte(`{"detail":"not the state of a core"}`))
			return
		}
		s.SetCore(is)
		w.WriteHeader(http.StatusNoContent)
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
