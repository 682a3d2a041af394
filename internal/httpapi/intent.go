package httpapi

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"time"

	"github.com/gin-gonic/gin"

	"github.com/pdmesh/pdmesh/internal/cli/settings"
	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/internal/openai"
)

// Verb is an operator's action on an instance, and the last part of its route.
type Verb string

// The verbs.
const (
	Drain     Verb = "drain"
	Undrain   Verb = "undrain"
	Cordon    Verb = "cordon"
	Uncordon  Verb = "uncordon"
	SetWeight Verb = "weight"
	SetRole   Verb = "role" // the role is that of the key
)

func allVerbs() []Verb { return []Verb{Drain, Undrain, Cordon, Uncordon, SetWeight, SetRole} }

// IntentChange is a change of an operator's intent for an instance.
type IntentChange struct {
	Verb   Verb
	Weight *int          // for SetWeight; nil resets it to the weight in the record
	For    time.Duration // duration of the change; 0: until it is reverted
	Reason string
	// Auto and Force are for SetRole; see store.IntentOptions.
	Auto, Force bool
}

// IntentResult is the result of an IntentChange.
type IntentResult struct {
	Known bool // false: no such instance, and nothing was changed
	// Revision is the etcd revision of the change, or one at which no change was necessary. A proxy
	// that has applied this revision has the change.
	Revision int64
}

// maxReason bounds the text of a reason, in bytes.
const maxReason = 1024

// parseIntentChange reads the fields that /instances/add does not accept.
func parseIntentChange(verb Verb, raw []byte) (IntentChange, error) {
	ic := IntentChange{Verb: verb}
	var body struct {
		For    string          `json:"for"`
		Reason string          `json:"reason"`
		Weight json.RawMessage `json:"weight"`
		Auto   bool            `json:"auto"`
		Force  bool            `json:"force"`
	}
	if err := json.Unmarshal(raw, &body); err != nil {
		return ic, badRequest(`"reason" is a text, "for" a duration such as "10m", "auto" and "force" are true or false: %s`, instance.JSONError(err))
	}
	var fields map[string]json.RawMessage
	_ = json.Unmarshal(raw, &fields) // it is an object
	for name := range fields {       // with a misspelled "for", the change would have no end
		if !slices.Contains([]string{"type", "instance", "instances", "dp_size", "for", "reason", "weight", "auto", "force"}, name) {
			return ic, badRequest("unknown field %q", instance.Printable(name, 40))
		}
	}
	if ic.Reason = body.Reason; len(ic.Reason) > maxReason {
		return ic, badRequest(`"reason" is longer than %d bytes`, maxReason)
	}
	if body.For != "" {
		d, err := settings.Duration(body.For)
		switch {
		case err != nil || d <= 0:
			return ic, badRequest(`"for" is %q: must be a duration such as "10m", or a number of seconds`, instance.Printable(body.For, 40))
		case verb == Undrain || verb == Uncordon:
			return ic, badRequest(`"for" goes with drain, cordon, weight and role`)
		}
		ic.For = d
	}
	if ic.Auto, ic.Force = body.Auto, body.Force; verb != SetRole && (ic.Auto || ic.Force) {
		return ic, badRequest(`"auto" and "force" go with /instances/role`)
	}
	weight := bytes.TrimSpace(body.Weight)
	switch {
	case verb != SetWeight && len(weight) > 0:
		return ic, badRequest(`"weight" goes with /instances/weight`)
	case verb != SetWeight:
		return ic, nil
	case len(weight) == 0:
		return ic, badRequest(`"weight" is missing: must be a whole number from 0 to %d, or null for the instance's own`, instance.MaxWeight)
	}
	if err := json.Unmarshal(weight, &ic.Weight); err != nil || ic.Weight != nil && !instance.ValidWeight(*ic.Weight) {
		return ic, badRequest(`"weight" is %s: must be a whole number from 0 to %d, or null for the instance's own`, instance.Printable(string(weight), 40), instance.MaxWeight)
	}
	if ic.Weight == nil && ic.For > 0 {
		return ic, badRequest(`"for" needs a weight, and cannot be used with null`)
	}
	return ic, nil
}

// intend returns the handler of a verb.
func (d *Deps) intend(verb Verb) gin.HandlerFunc {
	return d.handleBody(func(c *gin.Context, raw []byte) error {
		ch, err := parseChange(raw)
		if err != nil {
			return err
		}
		ic, err := parseIntentChange(verb, raw)
		if err != nil {
			return err
		}
		if verb == SetRole && ch.role == instance.Both && (ic.For > 0 || ic.Auto) {
			return badRequest(`"for" and "auto" need the role prefill or decode`)
		}
		var done, unknown []string
		revision := int64(0)
		for _, k := range ch.keys {
			result, err := d.Admin.ChangeIntent(c.Request.Context(), k, ic)
			switch {
			case err != nil:
				return withDone(err, k, done)
			case result.Known:
				done = append(done, k.Address)
			default:
				unknown = append(unknown, k.Address)
			}
			revision = max(revision, result.Revision)
		}
		if len(done) == 0 {
			failAdmin(c, http.StatusNotFound, openai.TypeNotFound, asMessage,
				fmt.Sprintf("Instances %s are not in the %s instances.", pythonList(unknown), ch.role))
			return nil
		}
		msg := fmt.Sprintf("%s %s instances: %s.", verb, ch.role, pythonList(done))
		if len(unknown) > 0 {
			msg += fmt.Sprintf(" Instances %s are not in the %s instances.", pythonList(unknown), ch.role)
		}
		writeJSON(c, http.StatusOK, struct {
			changeAnswer
			Revision int64 `json:"revision"`
		}{d.lists(msg), revision})
		return nil
	})
}
