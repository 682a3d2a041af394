package forward

import (
	"encoding/json"
	"net/http"
	"strings"
	"time"

	"github.com/pdmesh/pdmesh/internal/forward/leg"
	"github.com/pdmesh/pdmesh/internal/forward/relay"
	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/internal/openai"
	"github.com/pdmesh/pdmesh/internal/openai/pydantic"
	"github.com/pdmesh/pdmesh/internal/openai/splice"
)

// maxModelsAnswer bounds one engine's list of models.
const maxModelsAnswer = 1 << 20

// probeTimeout bounds a question that an engine answers from memory.
const probeTimeout = 5 * time.Second

// Models serves GET /v1/models and /v1/models/{id}: the models of all usable
// instances, each object exactly as its engine wrote it, since clients read
// vLLM's own fields in it ("root", "max_model_len"). id gives the wanted
// model, "" for the list.
func (h *Handler) Models(members func() *instance.Snapshot, id func(*http.Request) string) HandlerFunc {
	return h.serve("/v1/models", openai.Other, func(c *call) { c.models(members(), id(c.r)) })
}

type modelList struct {
	Object string            `json:"object"`
	Data   []json.RawMessage `json:"data"`
}

func (c *call) models(members *instance.Snapshot, id string) {
	list := modelList{Object: "list", Data: []json.RawMessage{}}
	seen := map[string]bool{}
	asked := 0
	var last *leg.Failure
	// Instances whose records list the same models give the same answer: one of
	// them is asked, the next only if it fails.
	answered := map[string]bool{}
	for _, in := range c.instancesToAsk(members) {
		kind := strings.Join(in.Record.Models, "\x00")
		if answered[kind] {
			continue
		}
		asked++
		data, f := c.modelsOf(in)
		if f != nil {
			if last = f; !f.Rule.Retry {
				c.answer.SendFailure(f)
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
		c.answer.Refuse(leg.MembershipUnread())
	case asked == 0:
		c.answer.Refuse(leg.Unavailable(instance.Decode, ""))
	case len(answered) == 0:
		c.answer.SendFailure(last)
	case id != "" && len(list.Data) == 0:
		c.answer.Refuse(pydantic.UnknownModel(id, c.h.opts.Picker.Models()))
	case id != "":
		c.answer.JSON(list.Data[0])
	default:
		c.answer.JSON(list)
	}
}

// instancesToAsk lists the usable instances, decode first, and those that are ejected last:
// asking one that hangs takes until the time limit.
func (c *call) instancesToAsk(members *instance.Snapshot) []*instance.Instance {
	var available, ejected []*instance.Instance
	for _, role := range []instance.Role{instance.Decode, instance.Prefill} {
		for _, in := range members.Usable(role) {
			if c.h.opts.Health.Available(in.Key) {
				available = append(available, in)
			} else {
				ejected = append(ejected, in)
			}
		}
	}
	return append(available, ejected...)
}

func (c *call) modelsOf(in *instance.Instance) ([]json.RawMessage, *leg.Failure) {
	header := c.origin.NewHeader(leg.EngineID(c.origin.ID)).Without("Content-Type")
	l, resp, err := c.origin.Ask(in, probeTimeout, http.MethodGet, "/v1/models", header, splice.Body{})
	defer l.End()
	if err != nil {
		return nil, l.JudgeError(err)
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.Status != http.StatusOK {
		return nil, relay.ReadError(l, resp, probeTimeout)
	}
	b, err := relay.ReadAll(resp, maxModelsAnswer)
	if err != nil {
		return nil, l.JudgeError(err)
	}
	var list modelList
	if err := json.Unmarshal(b, &list); err != nil {
		return nil, l.BadAnswer("its list of models is not valid JSON")
	}
	return list.Data, nil
}
