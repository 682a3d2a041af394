package fakevllm

import (
	"encoding/json"
	"io"
	"net/http"
	"strconv"
	"strings"

	"github.com/pdmesh/pdmesh/sim/fakevllm/jsontext"
	"github.com/pdmesh/pdmesh/sim/fakevllm/metrics"
	"github.com/pdmesh/pdmesh/sim/fakevllm/model"
	"github.com/pdmesh/pdmesh/sim/fakevllm/pydantic"
	"github.com/pdmesh/pdmesh/sim/fakevllm/request"
)

// get serves the pages about the engine.
func (l *life) get(w http.ResponseWriter, path string) {
	switch path {
	case "/health", "/ping":
		w.Header()["Content-Length"] = []string{"0"}
		w.WriteHeader(http.StatusOK)
	case "/load":
		pydantic.WriteJSON(w, http.StatusOK, []byte(`{"server_load":0}`)) // it is not tracked without an option
	case pathSleeping:
		pydantic.WriteJSON(w, http.StatusOK, jsontext.Append(nil, `{"is_sleeping":$}`, l.server.core().Sleeping))
	case pathPaused:
		is := l.server.core()
		pydantic.WriteJSON(w, http.StatusOK, jsontext.Append(nil, `{"is_paused":$}`, is.Paused || is.Sleeping || l.server.pausing.Load()))
	case pathEventSources:
		l.eventSources(w)
	case "/tokenizer_info":
		pydantic.WriteJSON(w, http.StatusOK, []byte(`{"tokenizer_class":"FakeTokenizer","max_loras":null,"truncation_side":"right"}`))
	case "/version":
		pydantic.WriteJSON(w, http.StatusOK, jsontext.Append(nil, `{"version":$}`, l.server.opt.Version))
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
	var cards []string
	card := func(name, root string, parent, length any) {
		created := l.started.Unix()
		cards = append(cards, string(jsontext.Append(nil, `{"id":$,"object":"model","created":$,"owned_by":"vllm","root":$,"parent":$,"max_model_len":$,`+
			`"permission":[{"id":$,"object":"model_permission","created":$,"allow_create_engine":false,"allow_sampling":true,"allow_logprobs":true,`+
			`"allow_search_indices":false,"allow_view":true,"allow_fine_tuning":false,"organization":"*","group":null,"is_blocking":false}]}`,
			name, created, root, parent, length, "modelperm-"+strings.ReplaceAll(l.engineID, "-", ""), created)))
	}
	for _, name := range o.Models {
		card(name, o.Models[0], nil, o.MaxModelLen)
	}
	for _, one := range l.adapters.snapshot() {
		card(one.name, one.path, o.Models[0], nil)
	}
	return []byte(`{"object":"list","data":[` + strings.Join(cards, ",") + "]}")
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
		m := c.Metrics(l.connector.Transfers(rank).Waiting)
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
	var err error
	switch r.Method + " " + r.URL.Path {
	case "GET " + pathState:
		b, err := json.Marshal(s.State())
		if err != nil {
			panic(err) // numbers and texts
		}
		pydantic.WriteJSON(w, http.StatusOK, b)
		return
	case "POST " + pathCore:
		var is CoreState
		if err = json.NewDecoder(io.LimitReader(r.Body, 1<<10)).Decode(&is); err == nil {
			s.SetCore(is)
		}
	case "DELETE " + pathFaults:
		s.ClearFaults()
	case "POST " + pathFaults:
		err = s.faults.Read(r.Body)
	default:
		pydantic.WriteDetail(w, http.StatusMethodNotAllowed, "Method Not Allowed")
		return
	}
	if err != nil {
		pydantic.WriteDetail(w, http.StatusBadRequest, err.Error())
		return
	}
	w.WriteHeader(http.StatusNoContent)
}

// tokenize answers /tokenize for a prompt or for messages.
func (l *life) tokenize(body []byte) ([]byte, error) {
	ids, strs, err := request.Tokenize(body, l.server.opt.tokenizer())
	if err == nil {
		err = l.checkModel(body)
	}
	if err != nil {
		return nil, err
	}
	var texts any
	if strs {
		list := jsontext.AppendList([]byte("["), ids, func(list []byte, _, id int) []byte {
			return append(model.AppendWordJSON(append(list, '"'), id), '"')
		})
		texts = jsontext.Raw(append(list, ']'))
	}
	return jsontext.Append(make([]byte, 0, 7*len(ids)+96), `{"count":$,"max_model_len":$,"tokens":$,"token_strs":$}`, len(ids), l.server.opt.MaxModelLen, ids, texts), nil
}

// detokenize answers /detokenize.
func (l *life) detokenize(body []byte) ([]byte, error) {
	ids, err := request.Detokenize(body)
	if err == nil {
		err = l.checkModel(body)
	}
	return jsontext.Append(nil, `{"prompt":$}`, strings.ToValidUTF8(model.DetokenizeAll(ids), "\ufffd")), err
}

// checkModel refuses a model that is not served; the body was validated.
func (l *life) checkModel(body []byte) error {
	name := ""
	members, _ := pydantic.Members(body) // it was read before
	if raw := members["model"]; !pydantic.IsNull(raw) {
		if err := pydantic.Into(&name, "model", raw); err != nil {
			return err
		}
	}
	if !l.serves(name) {
		return pydantic.ModelNotFound(name, l.server.opt.Models)
	}
	return nil
}
