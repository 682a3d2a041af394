package forward

import (
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/pdmesh/pdmesh/internal/forward/leg"
	"github.com/pdmesh/pdmesh/internal/forward/modelroute"
	"github.com/pdmesh/pdmesh/internal/forward/relay"
	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/internal/openai"
	"github.com/pdmesh/pdmesh/internal/openai/jsonscan"
	"github.com/pdmesh/pdmesh/internal/openai/splice"
)

// maxModelsAnswer bounds one engine's list of models in bytes. An adapter takes about 500.
const maxModelsAnswer = 16 << 20

// maxUnlike bounds the further queries for one recorded list of models after an answer that differed from
// it.
const maxUnlike = 16

// probeTimeout bounds a query that an engine answers from memory.
const probeTimeout = 5 * time.Second

// Models serves GET /v1/models and /v1/models/{id}: the models of all usable
// instances, each object exactly as its engine wrote it, since clients read
// vLLM's own fields in it ("root", "max_model_len"). id returns the wanted
// model, "" for the list.
func (h *Handler) Models(id func(*http.Request) string) HandlerFunc {
	return h.serve("/v1/models", openai.Other, func(c *call) {
		name := id(c.r)
		if !c.models(name, true) {
			c.h.opts.Models.Find(c.r.Context(), name)
			c.models(name, false)
		}
	})
}

type modelList struct {
	Object string            `json:"object"`
	Data   []json.RawMessage `json:"data"`
}

// models answers with the list of models and model routes, or with the model id. If again is set and no
// instance lists id, it returns false without an answer: the lists may be read again.
func (c *call) models(id string, again bool) (answered bool) {
	members := c.h.opts.Picker.Members()
	route, wanted := c.h.opts.Routes.Find(id), id
	if route != nil && !c.h.opts.Picker.Lists(id) {
		wanted = "" // id is a model route: get all models, for one of its targets
	}
	list, f := c.list(members, wanted)
	if list != nil && wanted != id {
		list.Data = list.alias(route)
	}
	missing := list != nil && id != "" && len(list.Data) == 0
	switch {
	case f != nil && (list == nil || missing && (route != nil || c.h.opts.Picker.Lists(id))):
		c.answer.SendFailure(f) // the instance that has the model may have failed
	case list == nil && members.Revision == 0:
		c.answer.Refuse(leg.MembershipUnread())
	case list == nil:
		c.answer.Refuse(leg.Unavailable(instance.Decode, ""))
	case missing && again:
		return false
	case missing:
		c.answer.Refuse(openai.UnknownModel(id, c.h.opts.Picker.Models()))
	case id != "":
		c.answer.JSON(list.Data[0])
	default:
		engines := *list
		for _, route := range c.h.opts.Routes.List() {
			if c.h.opts.Picker.Lists(route.Name) {
				continue
			}
			list.Data = append(list.Data, engines.alias(route)...)
		}
		c.answer.JSON(list)
	}
	return true
}

// alias returns the model object of a model route: that of its first target in the list, with the route as
// its id and the target as its parent. It is empty if the list has no target.
func (l *modelList) alias(route *modelroute.Route) []json.RawMessage {
	for _, t := range route.Targets {
		for _, m := range l.Data {
			if string(jsonscan.FindText(m, 0, "id")) == t.Model {
				return []json.RawMessage{jsonscan.Replace(jsonscan.Replace(m, "parent", t.Quoted), "id", route.Quoted)}
			}
		}
	}
	return nil
}

// list reads the models of the instances, all of them or only the model id. It returns a nil list if no
// instance answered or a failure must not be retried, and the last failure of an instance.
func (c *call) list(members *instance.Snapshot, id string) (*modelList, *leg.Failure) {
	list := &modelList{Object: "list", Data: []json.RawMessage{}}
	seen := map[string]bool{}
	outdated := false
	var last *leg.Failure
	// One instance is queried for each recorded list of models. Another one with the same list is queried only
	// if the first fails, or if an answer shows that the record is outdated.
	left := map[string]int{}
	for _, in := range c.instancesToAsk(members) {
		kind := strings.Join(in.Record.Models, "\x00")
		if n, ok := left[kind]; ok && n == 0 {
			continue
		}
		data, f := c.modelsOf(in)
		if f != nil {
			if last = f; !f.Rule.Retry {
				return nil, f
			}
			continue
		}
		names := list.add(data, seen, id)
		switch n, ok := left[kind]; {
		case sameModels(names, in.Record.Models):
			left[kind] = 0
		case !ok:
			left[kind], outdated = maxUnlike, true
		default:
			left[kind] = n - 1
		}
	}
	if outdated {
		c.h.opts.Models.Trigger()
	}
	if len(left) == 0 {
		return nil, last
	}
	return list, last
}

// add adds the models of an engine that are new, or only the model id unless id is "". It returns the names
// of all models in data.
func (l *modelList) add(data []json.RawMessage, seen map[string]bool, id string) (names []string) {
	for _, m := range data {
		name := string(jsonscan.FindText(m, 0, "id"))
		if name == "" {
			continue
		}
		names = append(names, name)
		if !seen[name] && (id == "" || id == name) {
			l.Data = append(l.Data, m)
		}
		seen[name] = true
	}
	return names
}

// sameModels reports whether two lists have the same models, in any order.
func sameModels(a, b []string) bool {
	if slices.Equal(a, b) {
		return true
	}
	sorted := func(names []string) []string { return slices.Compact(slices.Sorted(slices.Values(names))) }
	return slices.Equal(sorted(a), sorted(b))
}

// instancesToAsk returns the usable instances, decode first and ejected ones last: a query to a hung
// instance takes until its time limit.
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
		return nil, l.JudgeBadAnswer("its list of models is not valid JSON")
	}
	return list.Data, nil
}
