package instance

import "time"

// Document is a setting of the fleet that applies to more than one instance, such as the limits
// of an API key. Its reader decodes the value.
type Document struct {
	Key      // the folder and the name
	Value    []byte
	Revision int64 // mod_revision of its key
}

// Documents are all documents, ordered by folder and name. They are immutable.
type Documents struct{ List []Document }

// In returns the documents in a folder, by name. A nil Documents has none.
func (d *Documents) In(folder Role) []Document {
	if d == nil {
		return nil
	}
	var in []Document
	for _, one := range d.List {
		if one.Role == folder {
			in = append(in, one)
		}
	}
	return in
}

// ListedModelRoute is a model route as /status and pdctl show it.
type ListedModelRoute struct {
	Name    string              `json:"name"`
	Sticky  string              `json:"sticky"`
	Reason  string              `json:"reason,omitempty"`
	Problem string              `json:"problem,omitempty"` // why it is not used
	Targets []ListedModelTarget `json:"targets"`
	// Ends is the time at which the route ends, with --for; nil in /status.
	Ends *time.Time `json:"ends,omitempty"`

	Revision int64 `json:"revision"` // mod_revision of its key
}

// ListedModelTarget is one target of a model route.
type ListedModelTarget struct {
	Target   string `json:"target"` // model and selector
	Model    string `json:"model"`
	Selector string `json:"selector,omitempty"`
	Weight   int    `json:"weight"`
	// Prefill and Decode are the numbers of instances that can be used now.
	Prefill int `json:"prefill"`
	Decode  int `json:"decode"`
	// Requests and PassedOver count requests of this proxy since its start: those that the target
	// served or failed, and those that went to another target although this one was chosen.
	Requests   uint64 `json:"requests,omitempty"`
	PassedOver uint64 `json:"passed_over,omitempty"`
}
