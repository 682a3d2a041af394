package dashboard

import (
	"cmp"
	"encoding/json"
	"math"
	"slices"
	"strconv"
	"time"

	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/internal/observe/figures"
)

// Row is the part of a membership entry on the page that is independent of its load.
type Row struct {
	instance.Listing // without the load

	Canonical string `json:"canonical,omitempty"` // canonical form of the address, if that differs
	Group     string `json:"group,omitempty"`     // group of instances that it pairs with
	// Since is the time at which this proxy first saw the entry's lease, or the static
	// entry. AtLeast reports whether the entry existed when the proxy started.
	Since   int64 `json:"since"`
	AtLeast bool  `json:"at_least,omitempty"`
	// Usable reports whether new requests may be sent to it.
	Usable bool `json:"usable"`
}

// Facts are a proxy's facts about an entry that /status does not list.
type Facts struct {
	Connector string // connector in use
	Group     string // group of instances it pairs with, "" for all with its connector
}

// Proxy is one of the proxies in front of the fleet.
type Proxy struct {
	ID      string `json:"id"`
	Address string `json:"address,omitempty"`
	Version string `json:"version,omitempty"`
	Applied int64  `json:"applied"`
	Started int64  `json:"started,omitempty"`
	Own     bool   `json:"own,omitempty"`
	// Missing is the reason why its figures are not included.
	Missing string `json:"missing,omitempty"`
}

// Fleet has the state of all proxies.
type Fleet struct {
	Proxies []Proxy
	// Findings are those of doctor.
	Findings []Finding
	// Routes are the model routes, with the requests of all proxies.
	Routes []instance.ListedModelRoute
	// Figures cover the last seconds, and Totals the time since the proxies started. Both include this
	// proxy and all others without Missing.
	Figures, Totals *figures.Fleet
}

// Finding is a problem that doctor has found.
type Finding struct {
	Severity string `json:"severity"` // error, warning, note
	Text     string `json:"text"`
	Cure     string `json:"cure"`
}

// Lost is an instance that left the membership without a drain, as pd_membership_vanished_total
// counts it.
type Lost struct {
	Role    instance.Role `json:"role"`
	Address string        `json:"address"`
	At      int64         `json:"at"` // ms since 1970
}

// lostFor is the time for which such an instance is shown.
const lostFor = time.Hour

// Failure is the number of failed legs of an instance since the proxies started, by class.
type Failure struct {
	Role     string `json:"role"`
	Instance string `json:"instance"`
	Class    string `json:"class"`
	Count    int64  `json:"count"`
}

// failures returns the failed legs of all instances, except those whose clients left, the most frequent
// first.
func failures(f *figures.Fleet) []Failure {
	out := []Failure{}
	for s, n := range f.Counts(figures.Failures) {
		if s.Label != "client_gone" {
			out = append(out, Failure{Role: s.Role, Instance: s.Instance, Class: s.Label, Count: int64(n)})
		}
	}
	slices.SortFunc(out, func(a, b Failure) int {
		return cmp.Or(cmp.Compare(b.Count, a.Count), cmp.Compare(a.Instance, b.Instance), cmp.Compare(a.Class, b.Class))
	})
	return out
}

// labelled returns counters since the proxies started, by Series.Label.
func labelled(f *figures.Fleet) map[string]map[string]float64 {
	out := map[string]map[string]float64{}
	for part, name := range map[string]string{
		"refused": figures.QueueRefused, "requests": figures.KeyRequests, "tokens": figures.KeyTokens, "limited": figures.KeyRefused,
	} {
		out[part] = map[string]float64{}
		for s, n := range f.Counts(name) {
			out[part][s.Label] = n
		}
	}
	return out
}

// Etcd is the state of this proxy's connection to etcd.
type Etcd struct {
	State       string   `json:"state"` // cold, listing, live, suspect or stale, as in /status
	Live        bool     `json:"live"`  // the membership is being followed
	Embedded    bool     `json:"embedded,omitempty"`
	Endpoints   []string `json:"endpoints"`
	Ended       string   `json:"ended,omitempty"`
	LastContact string   `json:"last_contact,omitempty"`
	LastError   string   `json:"last_error,omitempty"`
	Orphans     int      `json:"orphans,omitempty"`
	Held        int      `json:"held,omitempty"`
	Kept        int      `json:"kept,omitempty"`
}

// reading reports whether the membership is being read, the first time or again.
func (e *Etcd) reading() bool { return e.State == "cold" || e.State == "listing" }

// Self describes the proxy that serves the page; it is sent once.
type Self struct {
	ID       string `json:"id"`
	Address  string `json:"address"`
	Version  string `json:"version"`
	Fallback bool   `json:"fallback"` // decode can serve without prefill
	// Admin reports whether there is an admin key. Actions lists the admin routes.
	Admin   bool     `json:"admin"`
	Actions []string `json:"actions"`
}

// tenure is the time since which an entry has existed under its lease.
type tenure struct {
	lease, create int64
	since         time.Time
	atLeast       bool
}

// row converts an entry of /status to a Row.
func row(in *instance.Instance, l *instance.Listing, f Facts, since tenure) Row {
	r := Row{
		Listing: *l, Group: f.Group, Since: since.since.UnixMilli(), AtLeast: since.atLeast,
		Usable: in.Usable() && (l.View == "" || l.View == instance.Orphan),
	}
	r.Weight, r.Connector, r.DefaultConnector, r.InFlight, r.Load = new(in.Weight()), f.Connector, "", nil, nil
	if canonical, err := instance.ParseAddress(l.Address); err == nil && canonical != l.Address {
		r.Canonical = canonical
	}
	return r
}

// Load is the load of an instance, which changes with every request.
type Load struct {
	InFlight int64   `json:"n"`
	Waiting  int64   `json:"waiting,omitempty"` // tokens of prompts
	Held     int64   `json:"held,omitempty"`    // tokens of prompts
	Others   float64 `json:"others,omitempty"`  // legs of the other proxies
	Hit      value   `json:"hit"`
	Ranks    []int64 `json:"ranks,omitempty"` // requests in flight by data-parallel rank; empty if there is one rank
	Engine   *Engine `json:"engine,omitempty"`
}

// Engine has the last metrics of an engine.
type Engine struct {
	Usage    float64 `json:"usage"` // of its KV cache, from 0 to 1
	Capacity int64   `json:"capacity,omitempty"`
	Running  float64 `json:"running"`
	Waiting  float64 `json:"waiting"`
	Old      bool    `json:"old,omitempty"` // older than oldEngine
}

// oldEngine is the maximum age of an engine's metrics in seconds.
const oldEngine = 30

func load(l *instance.Listing, hit value) Load {
	out := Load{Hit: hit}
	if l.InFlight != nil {
		out.InFlight = *l.InFlight
	}
	if more := l.Load; more != nil {
		out.Waiting, out.Held, out.Others = more.WaitingTokens, more.HeldTokens, math.Round(more.Others)
		for _, rank := range more.Ranks {
			out.Ranks = append(out.Ranks, rank.InFlight)
		}
		if e := more.Engine; e != nil {
			out.Engine = &Engine{
				Usage: math.Round(e.Usage*100) / 100, Capacity: e.Capacity, Running: e.Running, Waiting: e.Waiting, Old: e.Age > oldEngine,
			}
		}
	}
	return out
}

// frame is the whole state of the page at one moment, each part as JSON, so that unchanged
// parts are not sent again.
type frame struct {
	rows, loads map[string]json.RawMessage
	parts       map[string]json.RawMessage
}

// name returns a unique name for an entry of a frame: one address can have a membership and a pending
// add, or several values that cannot be read.
func (f *frame) name(in *instance.Instance) string {
	name := in.String()
	if in.View == instance.Pending {
		name += " pending"
	}
	for n, base := 2, name; f.rows[name] != nil; n++ {
		name = base + " " + strconv.Itoa(n)
	}
	return name
}

// changed returns the differences between two frames; null represents a removed entry.
func changed(was, is map[string]json.RawMessage) map[string]json.RawMessage {
	out := map[string]json.RawMessage{}
	for name, v := range is {
		if string(was[name]) != string(v) {
			out[name] = v
		}
	}
	for name := range was {
		if is[name] == nil {
			out[name] = json.RawMessage("null")
		}
	}
	return out
}
