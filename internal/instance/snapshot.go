package instance

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"time"
)

// Snapshot is an immutable view of the membership, complete up to Revision.
// Readers share it without locks and must not change its instances or documents.
type Snapshot struct {
	// Revision is the etcd store revision up to which this view is complete;
	// 0 before the first list.
	Revision int64
	// Documents are the settings of the fleet at that revision. Consecutive snapshots share
	// them while no document changes. May be nil.
	Documents *Documents

	all     []*Instance // sorted by compare; Lookup relies on it
	usable  [2][]*Instance
	changed chan struct{}
	once    sync.Once
}

// Compare orders memberships for display: prefill before decode, by address.
func (k Key) Compare(o Key) int {
	if k.Role != o.Role {
		return -cmp.Compare(k.Role, o.Role)
	}
	return cmp.Compare(k.Address, o.Address)
}

// compare orders the entries of a snapshot. Entries with the same key, such as two malformed
// keys in etcd, are ordered by view and revisions, so that the order is deterministic.
func compare(a, b *Instance) int {
	if c := comparePlaces(a, b); c != 0 {
		return c
	}
	return cmp.Or(cmp.Compare(a.View, b.View), cmp.Compare(a.CreateRevision, b.CreateRevision), cmp.Compare(a.ModRevision, b.ModRevision))
}

// comparePlaces orders entries by key, a membership before the pending add of the same key.
func comparePlaces(a, b *Instance) int {
	c := a.Key.Compare(b.Key)
	switch {
	case c == 0 && a.View != Pending && b.View == Pending:
		return -1
	case c == 0 && a.View == Pending && b.View != Pending:
		return 1
	}
	return c
}

// NewSnapshot returns a snapshot of the instances, which must not change afterwards. An address
// may be listed once per role as a membership, and also as a pending add. A slice that is in order
// (prefill first, then by address) becomes part of the snapshot; any other is copied.
func NewSnapshot(revision int64, all []*Instance) *Snapshot {
	if !slices.IsSortedFunc(all, compare) {
		all = slices.SortedFunc(slices.Values(all), compare)
	}
	s := &Snapshot{Revision: revision, all: slices.Clip(all), changed: make(chan struct{})}
	for i, in := range all {
		if in.Usable() {
			of := &s.usable[in.Role.Index()]
			if *of == nil {
				*of = make([]*Instance, 0, len(all)-i)
			}
			*of = append(*of, in)
		}
	}
	return s
}

// All returns every entry, prefill first, by address, including pending and rejected ones.
func (s *Snapshot) All() []*Instance { return s.all }

// Usable returns the instances of a role that the scheduler may pick.
func (s *Snapshot) Usable(r Role) []*Instance {
	if r != Prefill && r != Decode {
		return nil
	}
	return slices.Clip(s.usable[r.Index()]) // callers may append
}

// Lookup returns the membership of a key; it ignores pending adds.
func (s *Snapshot) Lookup(k Key) (*Instance, bool) { return s.find(k, false) }

// Pending returns the pending add of a key.
func (s *Snapshot) Pending(k Key) (*Instance, bool) { return s.find(k, true) }

// Waiting reports whether a key has a pending add.
func (s *Snapshot) Waiting(k Key) bool {
	_, ok := s.Pending(k)
	return ok
}

// find returns the pending add or the membership of a key, which may have both.
func (s *Snapshot) find(k Key, pending bool) (*Instance, bool) {
	at, _ := slices.BinarySearchFunc(s.all, k, func(in *Instance, k Key) int { return in.Key.Compare(k) })
	for _, in := range s.all[at:] {
		if in.Key != k {
			break
		}
		if (in.View == Pending) == pending {
			return in, true
		}
	}
	return nil, false
}

// Changed returns a channel that is closed when a newer snapshot has been published.
func (s *Snapshot) Changed() <-chan struct{} { return s.changed }

// Supersede closes Changed. The publisher calls it after it has stored the
// newer snapshot; further calls have no effect.
func (s *Snapshot) Supersede() { s.once.Do(func() { close(s.changed) }) }

// Listing is an instance as the /status of a proxy and pdctl show it, with the
// same fields.
type Listing struct {
	Role    Role   `json:"role"`
	Address string `json:"address"`
	Status  string `json:"status"`          // Instance.Status; one word for State, View and Intent
	State   State  `json:"state"`           // of the record
	Cause   string `json:"cause,omitempty"` // of State: slow, connection refused, HTTP 503, ...
	View    View   `json:"view,omitempty"`
	Intent  Intent `json:"intent,omitempty"`
	// OnlyRole is the role in which an engine in both roles is kept; see Instance.OnlyRole.
	OnlyRole Role     `json:"only_role,omitempty"`
	Reason   string   `json:"reason,omitempty"`
	Warning  string   `json:"warning,omitempty"` // problem of an instance that serves
	Static   bool     `json:"static"`
	ID       string   `json:"id,omitempty"`
	Models   []string `json:"models"`
	// ModelsTruncated is set if the engine serves more models than are listed.
	ModelsTruncated bool   `json:"models_truncated,omitempty"`
	Connector       string `json:"connector,omitempty"`
	// DefaultConnector is the connector that proxies use because the record names none.
	DefaultConnector string `json:"default_connector,omitempty"`

	Weight   *int     `json:"weight,omitempty"`  // nil means DefaultWeight
	Ranks    int      `json:"dp_size,omitempty"` // number of data-parallel ranks; 0 for a single one
	Source   string   `json:"source,omitempty"`
	Proxies  []string `json:"proxies,omitempty"` // proxies that use it; empty means every proxy
	Version  string   `json:"version,omitempty"`
	Revision int64    `json:"revision"` // mod_revision of its key
	InFlight *int64   `json:"in_flight,omitempty"`
	// Ends is when the operator's intent, weight or pending add ends by itself; nil means never, or
	// unknown. Only pdctl sets it, from the lease.
	Ends *time.Time `json:"intent_ends,omitempty"`
	// StartedAt is when the engine started, or first answered if it reports no start time, by the clock of its machine.
	StartedAt *time.Time `json:"started_at,omitempty"`
	// Load has further figures of the load; nil if none are known.
	Load *ListedLoad `json:"load,omitempty"`
}

// ListedLoad is the load of an instance, for display.
type ListedLoad struct {
	WaitingTokens int64         `json:"waiting_tokens"`             // prompt tokens of this proxy's legs, yet to be computed
	HeldTokens    int64         `json:"held_tokens"`                // prompt tokens held for this proxy's legs
	Others        float64       `json:"others_in_flight,omitempty"` // legs of the other proxies; older reports count less
	Engine        *ListedEngine `json:"engine,omitempty"`
	Pace          ListedPace    `json:"pace,omitzero"`
	// Prompts is the size of the prompts that policies expect in its cache; nil without
	// such a policy.
	Prompts *ListedPrompts `json:"prompts,omitempty"`
	// Ranks has the load of each data-parallel rank; empty for a single one.
	Ranks []ListedRank `json:"ranks,omitempty"`
}

// ListedPace has sums over about the last 64 requests of an instance, of all models; older requests
// count less. Paces of several proxies can be added.
type ListedPace struct {
	Samples float64 `json:"samples"`
	// Seconds is the time to compute the prompt (prefill), or for one token of the answer (decode).
	Seconds float64 `json:"seconds"`
	// Work is the number of the prompt's tokens that were not cached plus those queued before
	// (prefill), or the number of streams of the instance (decode).
	Work float64 `json:"work"`
}

// Plus returns the sums of both.
func (p ListedPace) Plus(q ListedPace) ListedPace {
	return ListedPace{p.Samples + q.Samples, p.Seconds + q.Seconds, p.Work + q.Work}
}

// ListedPrompts is the size of the prompts that a policy remembers.
type ListedPrompts struct {
	Entries int `json:"entries"`
	Text    int `json:"text_bytes"`
}

// ListedRank is the load of one data-parallel rank.
type ListedRank struct {
	InFlight      int64          `json:"in_flight"`
	WaitingTokens int64          `json:"waiting_tokens"`
	HeldTokens    int64          `json:"held_tokens"`
	Prompts       *ListedPrompts `json:"prompts,omitempty"`
}

// ListedEngine has the last metrics of an engine.
type ListedEngine struct {
	Age      float64 `json:"age_seconds"`
	Capacity int64   `json:"kv_capacity_tokens,omitempty"`
	Usage    float64 `json:"kv_cache_usage"`
	Running  float64 `json:"running"`
	Waiting  float64 `json:"waiting"`
	Starved  float64 `json:"waiting_for_kv_cache"`
	Fetching float64 `json:"fetching_kv_cache"`
	Ranks    int     `json:"ranks"`
	// Full reports whether the instance is skipped while another one has capacity.
	Full bool `json:"full,omitempty"`
}

// Listed returns List with the fields that depend on connector, the connector of instances
// whose record names none; "" if it is not known.
func (i *Instance) Listed(connector string) Listing {
	l := i.List()
	l.Warning = i.Warning(connector)
	if l.Connector == "" {
		l.DefaultConnector = Printable(connector, 64)
	}
	return l
}

// why returns Reason, or else an explanation of the record's state if it keeps the instance out of use.
func (i *Instance) why() string {
	switch {
	case i.Reason != "" || i.View != "":
	case i.Record.State == Starting && i.Record.Cause == CauseNoEngineIDs:
		return "its bootstrap server " + i.Bootstrap() + " does not return engine ids"
	case i.Record.State == Starting:
		return "its engine is starting"
	case i.Record.State == Draining:
		return "its agent drains it"
	case i.Record.State == Down && i.Static():
		return "no agent updates its static record"
	case i.Record.State == Down && i.Record.Cause == CauseSlow:
		return "its engine does not answer its agent in time"
	case i.Record.State == Down:
		return "its engine fails the probes of its agent"
	}
	return i.Reason
}

// List returns the entry of an instance with all strings from etcd made printable.
func (i *Instance) List() Listing {
	models := make([]string, 0, len(i.Record.Models))
	for _, m := range i.Record.Models {
		models = append(models, Printable(m, 256))
	}
	var proxies []string
	for _, p := range i.Record.Proxies {
		proxies = append(proxies, Printable(p, 300))
	}
	ranks := i.Ranks()
	if ranks == 1 {
		ranks = 0
	}
	return Listing{
		Ranks:   ranks,
		Proxies: proxies, Role: i.Role, Address: i.Address, Status: i.Status(), State: i.Record.State, Cause: Printable(i.Record.Cause, 32), View: i.View,
		Intent: i.Intent, OnlyRole: i.OnlyRole, Reason: i.why(), Static: i.Static(),
		ID: Printable(i.Incarnation(), 128), Models: models, ModelsTruncated: i.Record.ModelsTruncated,
		Connector: Printable(i.Record.Connector, 64), Weight: i.Record.Weight, Source: Printable(i.Record.Source, 32),
		Version: Printable(i.Record.Version, 64), Revision: i.ModRevision, StartedAt: i.Record.StartedAt,
	}
}

// Changes calls f for every membership and every pending add that differs between two
// snapshots, in the order of snapshots. was is nil for an added entry, is for a removed
// one. A membership and a pending add of the same key are different entries. Entries that
// both snapshots share are compared by pointer. A nil snapshot is empty.
func Changes(before, after *Snapshot, f func(was, is *Instance)) {
	var a, b []*Instance
	if before != nil {
		a = before.all
	}
	if after != nil {
		b = after.all
	}
	for len(a) > 0 || len(b) > 0 {
		order := 0
		switch {
		case len(a) == 0:
			order = 1
		case len(b) == 0:
			order = -1
		case a[0] != b[0]:
			order = comparePlaces(a[0], b[0])
		}
		var was, is *Instance
		if order <= 0 {
			was, a = a[0], a[1:]
		}
		if order >= 0 {
			is, b = b[0], b[1:]
		}
		if was != is {
			f(was, is)
		}
	}
}

// Source provides the current membership.
type Source interface{ Snapshot() *Snapshot }

// Follow calls f with the current snapshot and then with each newer one, until ctx ends. prev
// is the snapshot of the previous call, nil in the first one. Snapshots that were superseded while
// f ran are skipped; the newest one never is. Follow starts no goroutine: f is not called after
// Follow has returned.
func Follow(ctx context.Context, source func() *Snapshot, f func(prev, next *Snapshot)) {
	var prev *Snapshot
	Await(ctx, source, func(s *Snapshot) bool {
		f(prev, s)
		prev = s
		return false
	})
}

// Await blocks until met returns true for the current snapshot of source, and returns true; or
// until ctx ends, and returns false. It calls met once for each snapshot that it observes, at
// least for the one that is current when it is called.
func Await(ctx context.Context, source func() *Snapshot, met func(*Snapshot) bool) bool {
	for {
		s := source()
		if met(s) {
			return true
		}
		select {
		case <-ctx.Done():
			return false
		case <-s.Changed():
		}
		if ctx.Err() != nil {
			return false
		}
	}
}
