package roles

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/pdmesh/pdmesh/internal/instance"
)

const (
	// hold is the time for which a pressure must be above 1 before an instance changes its role. While too
	// few requests were measured, that time is Gap: the fleet may be starting.
	hold = 30 * time.Second
	// Gap is the shortest time between two changes of the fleet.
	Gap = 120 * time.Second
)

// Engine is an engine in both roles whose role may change.
type Engine struct {
	Address         string
	Models          []string
	Prefill, Decode bool  // whether it serves in the role now
	InFlight        int64 // requests
}

func (e *Engine) serves(r instance.Role) bool {
	return r == instance.Prefill && e.Prefill || r == instance.Decode && e.Decode
}

// Move is a change of the role of an engine.
type Move struct {
	Address string        `json:"address"`
	Role    instance.Role `json:"role"` // the role that it keeps or gets
	Both    bool          `json:"both"` // it serves the other role, too
	Model   string        `json:"model"`
	Reason  string        `json:"reason"`
}

// Automatic decides when an engine should change its role. Its zero value is ready. It is not safe
// for concurrent use.
type Automatic struct {
	over map[need]time.Time // start of the pressure above 1
	last time.Time          // last change of any engine
}

type need struct {
	model string
	role  instance.Role
}

// Moved records that the role of an engine was changed by any proxy or operator.
func (a *Automatic) Moved(now time.Time) { a.last = now }

// Reset forgets how long pressures have been too high, because the state of the fleet is not known.
func (a *Automatic) Reset() { clear(a.over) }

// Decide returns the change that should be made now; false if there is none. all has the demands of all
// models, engines those that may change their roles.
func (a *Automatic) Decide(now time.Time, all []*Demand, engines []Engine) (Move, bool) {
	over := map[need]time.Time{}
	var worst Move
	high := 1.0
	for _, d := range all {
		wait := hold
		if !d.Known() {
			wait = Gap
		}
		for _, role := range instance.Roles() {
			at, is := need{d.Model, role}, d.Pressure(role, d.Instances(role))
			if is <= 1 {
				continue
			}
			if over[at] = now; !a.over[at].IsZero() {
				over[at] = a.over[at]
			}
			if now.Sub(over[at]) < wait || now.Sub(a.last) < Gap || is <= high {
				continue
			}
			if m, ok := choose(d, role, all, engines); ok {
				worst, high = m, is
			}
		}
	}
	a.over = over
	return worst, worst.Address != ""
}

// choose chooses an engine that changes from the other role to a role: preferably one that serves only the
// other role, then one with few requests. If neither role has another engine, it serves both.
func choose(d *Demand, role instance.Role, all []*Demand, engines []Engine) (Move, bool) {
	n, other := d.Instances(role), d.Instances(role.Other())
	both := n <= 0 && other <= 1
	list := slices.DeleteFunc(slices.Clone(engines), func(e Engine) bool {
		return !e.serves(role.Other()) || !slices.Contains(e.Models, d.Model) || !both && !spare(&e, role.Other(), all)
	})
	if len(list) == 0 || n > 0 && d.Pressure(role, n+1) > 0.99*d.Pressure(role, n) {
		return Move{}, false
	}
	e := slices.MinFunc(list, func(a, b Engine) int {
		return cmp.Or(cmp.Compare(b.part(role), a.part(role)), cmp.Compare(a.InFlight, b.InFlight), cmp.Compare(a.Address, b.Address))
	})
	if other -= e.part(role); both {
		other = 0.5
	}
	return Move{Address: e.Address, Role: role, Both: both, Model: d.Model, Reason: fmt.Sprintf(
		"%s has pressure %.2f with %g instances (%s), %s %.2f with %g", role, d.Pressure(role, n), n, d.describe(role, n),
		role.Other(), d.Pressure(role.Other(), other), other)}, true
}

// part returns the number of instances that the other role loses when an engine changes to a role.
func (e *Engine) part(role instance.Role) float64 {
	if e.serves(role) {
		return 0.5
	}
	return 1
}

// spare reports whether a role can lose an engine, for all models that it serves. Without decode a model is
// not served, and without either role it is not measured: then one remaining instance is enough.
func spare(e *Engine, from instance.Role, all []*Demand) bool {
	for _, d := range all {
		if !slices.Contains(e.Models, d.Model) {
			continue
		}
		to := from.Other()
		left := d.Instances(from) - e.part(to)
		enough := d.Known() && d.Pressure(from, left) < spared || d.Instances(to) <= 0 && (to == instance.Decode || !d.Known())
		if left < 0.5 || !enough {
			return false
		}
	}
	return true
}
