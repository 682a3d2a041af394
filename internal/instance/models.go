package instance

import (
	"bytes"
	"encoding/json"
	"slices"
	"sort"
)

// SourceAgent is the Source of records that an agent writes and keeps up to date.
const SourceAgent = "agent"

// FitModels drops models from the end of the list until the JSON value of the record has at most
// MaxRecordBytes, and sets ModelsTruncated if it has dropped any. Engines list base models first,
// then LoRA adapters in the order in which they were loaded.
func (r *Record) FitModels() {
	if !r.tooLarge() || len(r.Models) == 0 {
		return
	}
	r.ModelsTruncated = true
	all := r.Models
	n := sort.Search(len(all), func(n int) bool { r.Models = all[:n+1]; return r.tooLarge() })
	r.Models = slices.Clone(all[:n])
}

// tooLarge reports whether the JSON value of the record, as package schema encodes it, has more than
// MaxRecordBytes.
func (r *Record) tooLarge() bool {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	_ = enc.Encode(r)                 // strings, numbers and times cannot fail
	return b.Len()-1 > MaxRecordBytes // without the final line feed
}

// Maintained reports whether an agent keeps the record up to date. Any other record was written
// once, and does not reflect models that the engine has loaded or unloaded since.
func (i *Instance) Maintained() bool { return !i.Static() && i.Record.Source == SourceAgent }
