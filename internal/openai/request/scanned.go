package request

import (
	"fmt"
	"unicode/utf8"

	"github.com/pdmesh/pdmesh/internal/openai"
	"github.com/pdmesh/pdmesh/internal/openai/jsonscan"
)

// maxTopLevel bounds the fields of a request, so that a hostile body cannot
// make the bookkeeping larger than the body itself.
const maxTopLevel = 4096

// maxContainers bounds the objects that are searched for control fields: each of them is read once
// more, also as a part of another one. A request with more is refused, since control fields in the
// others would reach the engine.
const maxContainers = 8

// occurrence is one occurrence of a field of interest in the body.
type occurrence struct {
	field    Field
	object   uint16 // number of the object that it is in; 0 is the request itself
	index    int    // number of members before it in that object
	key, end int    // from the key's quote to the end of the value
	val      int
	prevEnd  int // end of the member before, -1 for the first
	next     int // start of the member after, -1 for the last
}

// Scanned is the body of a request after one pass over it, with the occurrences of the
// fields of interest. Body is shared by every leg and must not be changed any more.
type Scanned struct {
	Kind openai.Kind
	Body []byte

	body    object // the request itself
	objects uint16
	// sampling is sampling_params of /inference/v1/generate, and samplingID its number.
	sampling   object
	samplingID uint16
	several    bool // Scanner.Several for "prompt", if that is an array
	nested     bool // there are arrays within "messages" or "input"
	occ        []occurrence
	last       [numFields]int // 1 + index into occ of the last occurrence where the field counts
}

// object is an object whose members are edited.
type object struct {
	open    int // position of '{'
	members int
}

func (r *Scanned) scan() error {
	if len(r.Body) == 0 {
		return openai.BadRequest("", "the request body is empty")
	}
	s := jsonscan.Scanner{Text: r.Body}
	open := s.Space(0)
	isObject := open < len(r.Body) && r.Body[open] == '{'
	var end int
	var err error
	if isObject {
		r.body.open, r.occ = open, make([]occurrence, 0, 8)
		end, err = r.scanObject(&s, open, 0, 0)
	} else {
		end, err = s.Value(open, 0)
	}
	switch rest := s.Space(end); {
	case err != nil:
		return badJSON(r.Body, err)
	case rest != len(r.Body):
		return badJSON(r.Body, jsonscan.ErrorAt(rest, jsonscan.ExtraData))
	case !utf8.Valid(r.Body[s.High:s.HighEnd]):
		return notUTF8()
	case isObject:
		return nil
	case jsonscan.IsNull(r.Body[open:end]):
		return openai.BadRequest("", "the request body is empty")
	}
	return openai.BadRequest("", "the request body must be a JSON object")
}

// scanObject records the fields of interest of one object: all of them for the request,
// only the control fields and containers for a container.
func (r *Scanned) scanObject(s *jsonscan.Scanner, at int, object uint16, depth int) (int, error) {
	prevEnd, index := -1, 0
	lastOcc := -1 // the occurrence whose next is still open
	arrays := s.Arrays
	end, err := s.Members(at, depth, func(m jsonscan.Member) error {
		if lastOcc >= 0 {
			r.occ[lastOcc].next = m.Key
			lastOcc = -1
		}
		f := fieldOf(s.Text[m.Key:m.KeyEnd])
		switch {
		case f == fieldNone:
		case f.container():
			// Containers are rare; the second pass over one is not worth avoiding.
			if s.Text[m.Value] == '{' {
				if r.objects++; r.objects > maxContainers {
					return ownLimit(fmt.Sprintf("more than %d objects named sampling_params, extra_args or vllm_xargs in the request", maxContainers))
				}
				if object == 0 && f == FieldSamplingParams {
					r.beginSampling(m.Value)
				}
				if _, err := r.scanObject(s, m.Value, r.objects, depth+1); err != nil {
					return err
				}
			}
		case r.counts(f, object) || f.steers():
			lastOcc = len(r.occ)
			r.occ = append(r.occ, occurrence{
				field: f, object: object, index: index,
				key: m.Key, val: m.Value, end: m.End, prevEnd: prevEnd, next: -1,
			})
			if r.counts(f, object) {
				r.last[f] = len(r.occ)
				switch f {
				case FieldPrompt:
					r.several = s.Several
				case FieldMessages, FieldInput:
					r.nested = r.nested || s.Arrays > arrays+1
				}
			}
		}
		prevEnd, arrays = m.End, s.Arrays
		index++
		if (object == 0 && index > maxTopLevel) || len(r.occ) > maxTopLevel {
			return ownLimit(fmt.Sprintf("more than %d fields in the request", maxTopLevel))
		}
		return nil
	})
	switch object {
	case 0:
		r.body.members = index
	case r.samplingID:
		r.sampling.members = index
	}
	return end, err
}

// counts reports whether a field is read and edited in an object.
func (r *Scanned) counts(f Field, object uint16) bool { return object == r.home(f) }

// home returns the object that a field belongs to.
func (r *Scanned) home(f Field) uint16 {
	if r.Kind == openai.Generate && f.sampling() {
		return r.samplingID
	}
	return 0
}

// beginSampling records sampling_params of a request to /inference/v1/generate. Of
// duplicates, the last one counts, with all its members.
func (r *Scanned) beginSampling(open int) {
	if r.Kind != openai.Generate {
		return
	}
	r.sampling, r.samplingID = object{open: open}, r.objects
	for f := range r.last {
		if Field(f).sampling() {
			r.last[f] = 0
		}
	}
}

// Raw returns the value of a top-level field as sent, nil if absent. Of
// duplicate keys the last counts, as in vLLM.
func (r *Scanned) Raw(f Field) []byte {
	if r.last[f] == 0 {
		return nil
	}
	o := &r.occ[r.last[f]-1]
	return r.Body[o.val:o.end]
}
