package request

import (
	"cmp"
	"slices"
	"strings"
	"unsafe"

	"github.com/pdmesh/pdmesh/internal/openai"
	"github.com/pdmesh/pdmesh/internal/openai/splice"
)

// Edit collects the changes that make the body of one leg from a request. It begins with
// the removal of the client's control fields.
type Edit struct {
	r      *Request
	action [numFields]action
	value  [numFields]string // of the fields that are set or replaced, as JSON
}

type action uint8

const (
	keep action = iota
	replace
	set
	remove
)

// NewEdit starts a leg of the request.
func (r *Request) NewEdit() *Edit {
	e := &Edit{r: r}
	for f := FieldKVTransferParams; f <= FieldBootstrap; f++ {
		e.action[f] = remove
	}
	switch {
	case r.KeepPriority:
	case r.Priority != "" && r.Kind != openai.Messages: // which has no such field
		e.Set(FieldPriority, r.Priority)
	default:
		e.action[FieldPriority] = remove
	}
	return e
}

// Named returns the request with another model, a JSON string, and otherwise only the changes of NewEdit.
func (r *Request) Named(model string) splice.Body {
	r.Served = model
	return r.NewEdit().Body()
}

// Kind returns the kind of the request.
func (e *Edit) Kind() openai.Kind { return e.r.Kind }

// Set sets the field to this JSON value, adding the field if it is absent.
func (e *Edit) Set(f Field, rawJSON string) { e.action[f], e.value[f] = set, rawJSON }

// SetBytes is Set with bytes that must not be changed afterwards.
func (e *Edit) SetBytes(f Field, rawJSON []byte) {
	e.Set(f, unsafe.String(unsafe.SliceData(rawJSON), len(rawJSON)))
}

// Replace sets the field to this JSON value if the client sent one.
func (e *Edit) Replace(f Field, rawJSON string) { e.action[f], e.value[f] = replace, rawJSON }

// Delete removes the field.
func (e *Edit) Delete(f Field) { e.action[f] = remove }

// readOnly returns a string's bytes without a copy: segments are never changed.
func readOnly(s string) []byte { return unsafe.Slice(unsafe.StringData(s), len(s)) }

// maxUsualSplices is the number of splices that need no allocation.
const maxUsualSplices = 12

// Body builds the leg. It shares the request's bytes.
func (e *Edit) Body() splice.Body {
	r := e.r
	if r.Served != "" {
		e.Replace(FieldModel, r.Served)
	}
	if r.PromptTokenIDs != nil {
		e.SetBytes(FieldKVTransferParams, withPromptIDs(e.value[FieldKVTransferParams], r.PromptTokenIDs))
	}
	var buf [maxUsualSplices]splice.Splice
	splices := buf[:0]
	for i := range r.occ {
		if o := &r.occ[i]; !e.removes(o) && r.counts(o.field, o.object) && e.action[o.field] != keep {
			splices = append(splices, splice.Splice{Start: o.val, End: o.end, Text: readOnly(e.value[o.field])})
		}
	}
	splices = append(splices, e.removals()...)
	splices = e.add(splices, 0, r.body)
	if r.samplingID != 0 {
		splices = e.add(splices, r.samplingID, r.sampling)
	}
	slices.SortFunc(splices, func(a, b splice.Splice) int {
		return cmp.Or(cmp.Compare(a.Start, b.Start), cmp.Compare(a.End, b.End))
	})
	return splice.Assemble(r.Body, splices)
}

// withPromptIDs adds the token ids of the prompt to transfer params; params is "" for none.
func withPromptIDs(params string, ids []byte) []byte {
	out := make([]byte, 0, len(params)+len(ids)+len(`{"prompt_token_ids":}`)+1)
	if rest := strings.TrimRight(params, " \t\r\n"); strings.HasSuffix(rest, "}") {
		if out = append(out, rest[:len(rest)-1]...); strings.TrimSpace(rest) != "{}" {
			out = append(out, ',')
		}
	} else {
		out = append(out, '{')
	}
	return append(append(append(out, `"prompt_token_ids":`...), ids...), '}')
}

// removes reports whether a member is removed. Setting a control field removes every occurrence
// of it in the client's body and adds the proxy's.
func (e *Edit) removes(o *occurrence) bool {
	a := e.action[o.field]
	if o.field.steers() && (o.object != 0 || a == set) {
		return true
	}
	return a == remove && e.r.counts(o.field, o.object)
}

// removals removes members, each with one comma: those before the first member that stays
// in an object with the comma after them, all others with the comma before.
func (e *Edit) removals() []splice.Splice {
	var out []splice.Splice
	leading := map[uint16]int{}
	for i := range e.r.occ {
		o := &e.r.occ[i]
		if !e.removes(o) {
			continue
		}
		if o.index == leading[o.object] {
			leading[o.object]++
			end := o.next
			if end < 0 {
				end = o.end
			}
			out = append(out, splice.Splice{Start: o.key, End: end})
			continue
		}
		out = append(out, splice.Splice{Start: o.prevEnd, End: o.end})
	}
	return out
}

// adds reports whether a field is inserted into the object with this number: it is set, and
// it was either absent in the client's body or belongs at the start.
func (e *Edit) adds(f Field, id uint16) bool {
	return e.action[f] == set && (e.r.last[f] == 0 || f.steers()) && e.r.counts(f, id)
}

// add inserts the fields that are missing in an object of the request, before all others.
func (e *Edit) add(splices []splice.Splice, id uint16, in object) []splice.Splice {
	n := 0
	for f := range numFields {
		if e.adds(f, id) {
			n += len(fieldNames[f]) + len(e.value[f]) + len(`"":,`)
		}
	}
	if n == 0 {
		return splices
	}
	b := make([]byte, 0, n)
	for f := range numFields {
		if e.adds(f, id) {
			b = append(append(b, '"'), fieldNames[f]...)
			b = append(append(append(b, `":`...), e.value[f]...), ',')
		}
	}
	if !e.survives(id, in.members) {
		b = b[:len(b)-1]
	}
	return append(splices, splice.Splice{Start: in.open + 1, End: in.open + 1, Text: b})
}

// survives reports whether any of an object's members stays.
func (e *Edit) survives(id uint16, members int) bool {
	for i := range e.r.occ {
		if o := &e.r.occ[i]; o.object == id && e.removes(o) {
			members--
		}
	}
	return members > 0
}
