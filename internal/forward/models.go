package forward

import (
	"encoding/json"
	"net/http"
	"strings"
	"time"

	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/internal/upstream"
)

// maxModelsAnswer bounds one engine's list of models.
const maxModelsAnswer = 1 << 20

// probeTimeout bounds a question that an engine answers from memory.
const probeTimeout = 5 * time.Second

// Models serves GET /v1/models and /v1/models/{id}: the union over the usable
// instances, each model's object exactly as its engine wrote it, since clients
// read vLLM's own fields in it ("root", "max_model_len"). id gives the wanted
// model, "" for the list.
func (h *Handler) Models(members func() *instance.Snapshot, id func(*http.Request) string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		x := h.newExchange(w, r, "/v1/models")
		x.models(members(), id(r))
		x.finish()
	}
}

type modelList struct {
	Object string            `json:"object"`
	Data   []json.RawMessage `json:"data"`
}

func (x *exchange) models(members *instance.Snapshot, id string) {
	list := modelList{Object: "list", Data: []json.RawMessage{}}
	seen := map[string]bool{}
	asked := 0
	// Instances that list the same models answer the same: one of them is
	// asked, the next only if it fails.
	answered := map[string]bool{}
	for _, in := range x.whomToAsk(members) {
		kind := strings.Join(in.Record.Models, "\x00")
		if answered[kind] {
			continue
		}
		asked++
		data, f := x.modelsOf(in)
		if f != nil {
			if x.last = f; !f.rule.retry {
				x.tell(f)
				return
			}
			continue
		}
		answered[kind] = true
		for _, m := range data {
			var name struct{ ID string }
			if json.Unmarshal(m, &name) == nil && name.ID != "" && !seen[name.ID] {
				seen[name.ID] = true
				if id == "" || id == name.ID {
					list.Data = append(list.Data, m)
				}
			}
		}
	}
	switch {
	case asked == 0 && members.Revision == 0:
		x.refuse(unread())
	case asked == 0:
		x.refuse(unavailable(instance.Decode, ""))
	case len(answered) == 0:
		x.tell(x.last)
	case id != "" && len(list.Data) == 0:
		x.refuse(x.unknownModel(id))
	case id != "":
		x.json(list.Data[0])
	default:
		x.json(list)
	}
}

// whomToAsk lists the usable instances, decode first, and those that are ejected last:
// one that hangs costs a question its time limit.
func (x *exchange) whomToAsk(members *instance.Snapshot) []*instance.Instance {
	var well, sick []*instance.Instance
	for _, role := range []instance.Role{instance.Decode, instance.Prefill} {
		for _, in := range members.Usable(role) {
			if x.h.opts.Health.Available(in.Key) {
				well = append(well, in)
			} else {
				sick = append(sick, in)
			}
		}
	}
	return append(well, sick...)
}

func (x *exchange) modelsOf(in *instance.Instance) ([]json.RawMessage, *failure) {
	l := x.beginAside(probeTimeout, errFirstByteTimeout)
	defer l.end()
	header := x.legHeader(x.engineID())
	delete(header, "Content-Type")
	l.request = upstream.Request{Instance: in, Method: http.MethodGet, Path: "/v1/models", Header: header}
	resp, err := x.do(l)
	if err != nil {
		return nil, x.ofExchange(in, err)
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.Status != http.StatusOK {
		f := x.ofStatus(in, resp.Status, resp.Header)
		x.readText(f, resp) // within probeTimeout
		return nil, f
	}
	b, err := x.readBounded(resp, maxModelsAnswer)
	if err != nil {
		return nil, x.ofExchange(in, err)
	}
	var list modelList
	if err := json.Unmarshal(b, &list); err != nil {
		return nil, x.ofAnswer(in, "its list of models is not valid JSON")
	}
	return list.Data, nil
}

func (x *exchange) json(v any) {
	b, err := json.Marshal(v)
	if err != nil {
		x.refuse(err)
		return
	}
	x.entry.Status, x.entry.Outcome = http.StatusOK, OutcomeOK
	x.showID()
	x.w.Header().Set("Content-Type", "application/json")
	x.w.WriteHeader(http.StatusOK)
	n, _ := x.w.Write(b) // a client that left needs no error
	x.entry.BytesOut = int64(n)
}
