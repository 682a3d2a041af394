package instance

import (
	"cmp"
	"slices"
	"sync"
)

// Snapshot is an immutable view of the membership, complete up to Revision.
// Readers share it without locks and must not change what it holds.
type Snapshot struct {
	// Revision is the etcd store revision up to which this view is complete;
	// 0 before the first list.
	Revision int64

	all     []*Instance
	usable  map[Role][]*Instance
	byKey   map[Key]*Instance
	changed chan struct{}
	once    sync.Once
}

// NewSnapshot takes over the slice and every instance in it. An address may
// stand once per role as a membership and once more as a pending add.
func NewSnapshot(revision int64, all []*Instance) *Snapshot {
	slices.SortFunc(all, func(a, b *Instance) int {
		return cmp.Or(
			-cmp.Compare(a.Role, b.Role), // prefill before decode
			cmp.Compare(a.Address, b.Address),
			cmp.Compare(a.View, b.View),
		)
	})
	s := &Snapshot{
		Revision: revision,
		all:      all,
		usable:   make(map[Role][]*Instance, 2),
		byKey:    make(map[Key]*Instance, len(all)),
		changed:  make(chan struct{}),
	}
	for _, in := range all {
		if in.View != Pending {
			s.byKey[in.Key] = in
		}
		if in.Usable() {
			s.usable[in.Role] = append(s.usable[in.Role], in)
		}
	}
	return s
}

// All lists every entry, prefill first, by address, pending and rejected ones included.
func (s *Snapshot) All() []*Instance { return s.all }

// Usable lists the instances of a role that the scheduler may pick.
func (s *Snapshot) Usable(r Role) []*Instance { return s.usable[r] }

// Lookup finds a membership; pending adds are not found by it.
func (s *Snapshot) Lookup(k Key) (*Instance, bool) {
	in, ok := s.byKey[k]
	return in, ok
}

// Changed is closed when a newer snapshot has been published.
func (s *Snapshot) Changed() <-chan struct{} { return s.changed }

// Supersede closes Changed. The publisher calls it after it has stored the
// newer snapshot; more than one call does no harm.
func (s *Snapshot) Supersede() { s.once.Do(func() { close(s.changed) }) }

// Listing is how an instance is shown to people and scripts: by the proxy's
// /status and by pdctl, field for field the same.
type Listing struct {
	Role      Role     `json:"role"`
	Address   string   `json:"address"`
	State     State    `json:"state"`
	View      View     `json:"view,omitempty"`
	Intent    Intent   `json:"intent,omitempty"`
	Reason    string   `json:"reason,omitempty"`
	Static    bool     `json:"static"`
	ID        string   `json:"id,omitempty"`
	Models    []string `json:"models"`
	Connector string   `json:"connector,omitempty"`
	Source    string   `json:"source,omitempty"`
	Version   string   `json:"version,omitempty"`
	Revision  int64    `json:"revision"` // mod_revision of its key
	InFlight  *int64   `json:"in_flight,omitempty"`
}

// List renders one entry; strings that came from etcd are made printable.
func (i *Instance) List() Listing {
	models := make([]string, 0, len(i.Record.Models))
	for _, m := range i.Record.Models {
		models = append(models, Printable(m, 256))
	}
	return Listing{
		Role: i.Role, Address: i.Address, State: i.Record.State, View: i.View,
		Intent: i.Intent, Reason: i.Reason, Static: i.Static(),
		ID: Printable(i.Incarnation(), 128), Models: models,
		Connector: Printable(i.Record.Connector, 64), Source: Printable(i.Record.Source, 32),
		Version: Printable(i.Record.Version, 64), Revision: i.ModRevision,
	}
}
