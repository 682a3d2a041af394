package schema

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/pdmesh/pdmesh/internal/instance"
)

// ModelRoute is the JSON value of the document of a model route. Requests for the model with the
// name of the document go to one of the targets.
type ModelRoute struct {
	V       int           `json:"v"`
	Targets []ModelTarget `json:"targets"`
	// Sticky selects which requests stay on one target: those of a session (StickySession, the
	// default), those of an API key (StickyKey), or none (StickyNone).
	Sticky string `json:"sticky,omitempty"`
	Reason string `json:"reason,omitempty"`
}

// ModelTarget is one target of a model route.
type ModelTarget struct {
	// Model is a model that engines serve.
	Model string `json:"model"`
	// Selector restricts the requests to instances whose labels match; "" allows all.
	Selector string `json:"selector,omitempty"`
	// Weight is the target's share of the requests, 0 to instance.MaxWeight; nil means
	// instance.DefaultWeight. A target of weight 0 gets requests only while the others cannot serve.
	Weight *int `json:"weight,omitempty"`
}

// The values of ModelRoute.Sticky.
const (
	StickySession = "session" // the session of the client
	StickyKey     = "key"     // the name of the API key
	StickyNone    = "none"
)

// maxTargets bounds the targets of a model route.
const maxTargets = 16

// Share returns the weight, or its default.
func (t *ModelTarget) Share() int {
	if t.Weight == nil {
		return instance.DefaultWeight
	}
	return *t.Weight
}

// Labels returns the selector, nil for none.
func (t *ModelTarget) Labels() (instance.Selector, error) {
	if t.Selector == "" {
		return nil, nil
	}
	return instance.ParseSelector(t.Selector)
}

// String returns the target in the syntax of pdctl, without its weight. It is unique among the
// targets of a route.
func (t *ModelTarget) String() string {
	if t.Selector == "" {
		return t.Model
	}
	return t.Model + "{" + t.Selector + "}"
}

// Splits reports whether a model is one of the targets.
func (r *ModelRoute) Splits(model string) bool {
	return slices.ContainsFunc(r.Targets, func(t ModelTarget) bool { return t.Model == model })
}

// Conflict returns why a valid route cannot have a name, "" if it can. A name that an engine of
// this fleet serves is no alias. Only a route that splits the requests for that model may have the
// name: the model is one of its targets.
func (r *ModelRoute) Conflict(name string, all []*instance.Instance) string {
	if r.Splits(name) {
		return ""
	}
	for _, in := range all {
		if in.View != instance.Elsewhere && in.ServesModel(name) {
			return fmt.Sprintf("%s serves a model with the name %s, which takes precedence; to split its requests, make it one of the targets", in.Key, instance.Printable(name, 80))
		}
	}
	return ""
}

// DecodeModelRoute reads and checks a model route. Every error is a *RejectedError.
func DecodeModelRoute(value []byte) (r ModelRoute, err error) {
	if err := decodeValue(value, &r, `a model route must be a JSON object such as {"v":1,"targets":[{"model":"Qwen2.5-72B"}]}`); err != nil {
		return ModelRoute{}, err
	}
	return r, r.Check()
}

// Check returns why the route cannot be used, nil if it can. The error is a *RejectedError.
func (r *ModelRoute) Check() error {
	switch r.Sticky {
	case "", StickySession, StickyKey, StickyNone:
	default:
		return Rejectf("sticky is %s; use session, key or none", Quote(r.Sticky, 40))
	}
	if len(r.Targets) == 0 || len(r.Targets) > maxTargets {
		return Rejectf("a model route has 1 to %d targets, not %d", maxTargets, len(r.Targets))
	}
	total, seen := 0, map[string]bool{}
	for i := range r.Targets {
		t := &r.Targets[i]
		if err := CheckDocument(instance.Key{Role: Models, Address: t.Model}, []byte("{}")); err != nil {
			return Rejectf("model of target %d: %s", i+1, ReasonOf(err))
		}
		if strings.ContainsAny(t.Model, "{}") {
			return Rejectf("model of target %d: the name %s contains braces", i+1, Quote(t.Model, 80))
		}
		switch l, err := t.Labels(); {
		case err != nil:
			return Rejectf("selector %s: %s", Quote(t.Selector, 80), err)
		case !l.OnlyLabels():
			return Rejectf("selector %s: only labels select the instances of a target; write label:NAME for a label with the name role, model or state", Quote(t.Selector, 80))
		}
		if !instance.ValidWeight(t.Share()) {
			return Rejectf("weight %d of %s: must be between 0 and %d", t.Share(), Quote(t.String(), 80), instance.MaxWeight)
		}
		if seen[t.String()] {
			return Rejectf("target %s occurs twice", Quote(t.String(), 80))
		}
		seen[t.String()], total = true, total+t.Share()
	}
	if total == 0 {
		return Rejectf("all weights are 0")
	}
	return nil
}

// ListModelRoute returns the route in a document. all are the instances among which it counts those
// that each target can use.
func ListModelRoute(d instance.Document, all []*instance.Instance) instance.ListedModelRoute {
	r, err := DecodeModelRoute(d.Value)
	l := instance.ListedModelRoute{
		Name: instance.Printable(d.Address, 256), Sticky: cmp.Or(r.Sticky, StickySession), Reason: instance.Printable(r.Reason, 300), Revision: d.Revision,
		Targets: []instance.ListedModelTarget{},
	}
	if err != nil {
		l.Problem = ReasonOf(err)
		return l
	}
	l.Problem = r.Conflict(d.Address, all)
	for i := range r.Targets {
		t := &r.Targets[i]
		labels, _ := t.Labels() // was checked
		one := instance.ListedModelTarget{Target: instance.Printable(t.String(), 256), Model: instance.Printable(t.Model, 256), Selector: instance.Printable(t.Selector, 256), Weight: t.Share()}
		for _, in := range all {
			switch {
			case !in.Usable() || !in.ServesModel(t.Model) || !labels.Matches(in):
			case in.Role == instance.Prefill:
				one.Prefill++
			default:
				one.Decode++
			}
		}
		l.Targets = append(l.Targets, one)
	}
	return l
}

// maxDocumentName bounds the name of a document, in bytes.
const maxDocumentName = 256

// CheckDocument checks the name of a document, and that its value is a JSON object of at most 16
// KiB. The error is a *RejectedError.
func CheckDocument(k instance.Key, value []byte) error {
	switch {
	case k.Address == "" || len(k.Address) > maxDocumentName:
		return Rejectf("a name has 1 to %d bytes", maxDocumentName)
	case !utf8.ValidString(k.Address) || strings.ContainsFunc(k.Address, func(r rune) bool { return r <= ' ' || r == 0x7f }):
		return Rejectf("the name %s contains spaces or control characters", Quote(k.Address, 80))
	}
	text, err := valueText(value)
	if err != nil {
		return err
	}
	if text == "" || text[0] != '{' || !json.Valid(value) {
		return Rejectf("the value is not a JSON object")
	}
	return nil
}
