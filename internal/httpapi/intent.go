package httpapi

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"time"

	"github.com/gin-gonic/gin"

	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/internal/openai"
)

// Verb is what is to be done about an instance; it is the last part of its route.
type Verb string

// The verbs.
const (
	Drain    Verb = "drain"
	Undrain  Verb = "undrain"
	Cordon   Verb = "cordon"
	Uncordon Verb = "uncordon"
	Weigh    Verb = "weight"
)

// verbs lists all.
func verbs() []Verb { return []Verb{Drain, Undrain, Cordon, Uncordon, Weigh} }

// Wish is what an operator wants of an instance.
type Wish struct {
	Verb   Verb
	Weight *int          // of Weigh; nil: its own again
	For    time.Duration // how long it holds; 0: until it is lifted
	Reason string
}

// Wished is what came of it.
type Wished struct {
	Known bool // false: there is no such instance, and nothing was done
	// Revision is the one that a proxy must have applied to know of it.
	Revision int64
}

// maxReason bounds the text of a reason, in bytes.
const maxReason = 1024

// wishBody are the members of a request that those of /instances/add do not have.
type wishBody struct {
	For    string          `json:"for"`
	Reason string          `json:"reason"`
	Weight json.RawMessage `json:"weight"`
}

func readWish(verb Verb, raw []byte) (Wish, error) {
	w := Wish{Verb: verb}
	var body wishBody
	if err := json.Unmarshal(raw, &body); err != nil {
		return w, refused(`"reason" is a text, "for" a duration such as "10m": %w`, err)
	}
	if w.Reason = body.Reason; len(w.Reason) > maxReason {
		return w, refused(`"reason" is longer than %d bytes`, maxReason)
	}
	if body.For != "" {
		d, err := time.ParseDuration(body.For)
		switch {
		case err != nil || d <= 0:
			return w, refused(`"for" is %q: give a duration such as "10m"`, instance.Printable(body.For, 40))
		case verb == Undrain || verb == Uncordon:
			return w, refused(`"for" goes with drain, cordon and weight`)
		}
		w.For = d
	}
	weight := bytes.TrimSpace(body.Weight)
	switch {
	case verb != Weigh && len(weight) > 0:
		return w, refused(`"weight" goes with /instances/weight`)
	case verb != Weigh:
		return w, nil
	case len(weight) == 0:
		return w, refused(`"weight" is missing: give a whole number from 0 up, or null for the instance's own`)
	}
	if err := json.Unmarshal(weight, &w.Weight); err != nil || w.Weight != nil && *w.Weight < 0 {
		return w, refused(`"weight" is %s: give a whole number from 0 up, or null for the instance's own`, instance.Printable(string(weight), 40))
	}
	return w, nil
}

// wishAnswer is changeAnswer and the revision of the change.
type wishAnswer struct {
	changeAnswer
	Revision int64 `json:"revision"`
}

// intend is the handler of a verb.
func (d *Deps) intend(verb Verb) gin.HandlerFunc {
	return func(c *gin.Context) {
		raw, err := readAdminBody(c.Request)
		if err != nil {
			d.adminError(c, err)
			return
		}
		ch, err := readChange(raw)
		if err != nil {
			d.adminError(c, err)
			return
		}
		w, err := readWish(verb, raw)
		if err != nil {
			d.adminError(c, err)
			return
		}
		var done, unknown []string
		revision := int64(0)
		for _, k := range ch.keys {
			got, err := d.Admin.Intend(c.Request.Context(), k, w)
			switch {
			case err != nil:
				d.adminError(c, partly(err, k, done))
				return
			case got.Known:
				done = append(done, k.Address)
			default:
				unknown = append(unknown, k.Address)
			}
			revision = max(revision, got.Revision)
		}
		if len(done) == 0 {
			refuse(c, http.StatusNotFound, openai.TypeNotFound, asMessage,
				fmt.Sprintf("Instances %s are not in the %s instances.", pyList(unknown), ch.role))
			return
		}
		msg := fmt.Sprintf("%s %s instances: %s.", verb, ch.role, pyList(done))
		if len(unknown) > 0 {
			msg += fmt.Sprintf(" Instances %s are not in the %s instances.", pyList(unknown), ch.role)
		}
		writeJSON(c, http.StatusOK, wishAnswer{changeAnswer: d.lists(msg), Revision: revision})
	}
}
