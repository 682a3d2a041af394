package instance

import (
	"bytes"
	"encoding/json"
	"slices"
)

// SourceAgent is the Source of records that an agent writes and keeps up to date.
const SourceAgent = "agent"

// FitModels drops models from the end of the list until the JSON value of the record has at most
// MaxRecordBytes, and sets ModelsTruncated if it has dropped any. Engines list base models first,
// then LoRA adapters in the order in which they were loaded.
func (r *Record) FitModels() {
	over := r.size() - MaxRecordBytes
	if over <= 0 || len(r.Models) == 0 {
		return
	}
	if !r.ModelsTruncated {
		r.ModelsTruncated = true
		over += len(`,"models_truncated":true`)
	}
	n := len(r.Models)
	for over > 0 && n > 0 {
		n--
		over -= jsonSize(r.Models[n]) + 1
	}
	r.Models = slices.Clone(r.Models[:n])
}

// size returns the length of the JSON value of the record as package schema encodes it.
func (r *Record) size() int { return jsonSize(r) }

func jsonSize(v any) int {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if enc.Encode(v) != nil {
		return 0 // cannot happen: the record has strings, numbers and times
	}
	return b.Len() - 1
}

// Maintained reports whether an agent keeps the record up to date. The record of any other
// instance was written once: what its engine has loaded or unloaded since is not in it.
func (i *Instance) Maintained() bool { return !i.Static() && i.Record.Source == SourceAgent }
