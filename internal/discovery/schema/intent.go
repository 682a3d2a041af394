package schema

import (
	"cmp"
	"time"

	"github.com/pdmesh/pdmesh/internal/instance"
)

// Override is the JSON value of an operator's intent. It takes precedence over the record of its
// instance, and stays when the record is deleted.
type Override struct {
	V      int             `json:"v"`
	State  instance.Intent `json:"state,omitempty"`  // drain, cordon, removed, or empty with a weight
	Weight *int            `json:"weight,omitempty"` // replaces the record's, at least 0
	Reason string          `json:"reason,omitempty"`
	By     string          `json:"by,omitempty"`
	// MoveAfter is the time in seconds, from when a proxy applies the drain, after which running
	// streams continue on other instances; nil: they stay.
	MoveAfter *int `json:"move_after,omitempty"`
	// Role marks a drain that keeps an engine of both roles in this other role only. A drain without
	// it was set by an operator. Programs that do not know the field see a drain.
	Role instance.Role `json:"role,omitempty"`
	// Auto reports, with Role, that a proxy chose the role (--auto-roles), not an operator.
	Auto bool `json:"auto,omitempty"`
}

// Move is the JSON value of the key that holds the last change of a role. Every change compares the
// revision of the key, so that two changes never happen at the same time.
type Move struct {
	V       int           `json:"v"`
	Role    instance.Role `json:"role"` // prefill, decode or both
	Address string        `json:"address"`
	By      string        `json:"by,omitempty"`
	Reason  string        `json:"reason,omitempty"`
	Auto    bool          `json:"auto,omitempty"`
}

// PendingAdd is the JSON value of an add that waits until its instance answers.
type PendingAdd struct {
	V         int              `json:"v"`
	Model     string           `json:"model,omitempty"`     // that must be served; empty: --model of the proxy
	Connector string           `json:"connector,omitempty"` // goes into the record
	By        string           `json:"by,omitempty"`
	Reason    string           `json:"reason,omitempty"`
	Since     *time.Time       `json:"since,omitempty"`  // for display; never compared
	Record    *instance.Record `json:"record,omitempty"` // completed by the verified facts
}

// maxMoveAfter bounds Override.MoveAfter: a day.
const maxMoveAfter = 24 * 60 * 60

// DecodeOverride reads an override. Every error is a *RejectedError. An empty value is an error,
// since it has no intent.
func DecodeOverride(value []byte) (Override, error) {
	var o Override
	if err := decodeValue(value, &o, `an override must be a JSON object such as {"v":1,"state":"drain"}`); err != nil {
		return Override{}, err
	}
	switch o.State {
	case "", instance.Drain, instance.Cordon, instance.Removed:
	default:
		return Override{}, Rejectf("state is %s; use drain, cordon or removed", Quote(string(o.State), 40))
	}
	if o.Weight != nil && *o.Weight < 0 {
		return Override{}, Rejectf("weight is negative")
	}
	if o.MoveAfter != nil && (*o.MoveAfter < 0 || *o.MoveAfter > maxMoveAfter) {
		return Override{}, Rejectf("move_after is not 0 to %d seconds", maxMoveAfter)
	}
	if o.State != instance.Drain || o.Role != instance.Prefill && o.Role != instance.Decode {
		o.Role, o.Auto = "", false // by a newer program: keep the drain
	}
	return o, nil
}

// DecodePending reads a pending add. An empty value is one with default settings. Every error is a
// *RejectedError.
func DecodePending(k instance.Key, value []byte) (PendingAdd, error) {
	if text, err := valueText(value); err == nil && text == "" {
		return PendingAdd{V: 1}, nil
	}
	var p PendingAdd
	if err := decodeValue(value, &p, "a pending add must be empty or a JSON object"); err != nil {
		return PendingAdd{}, err
	}
	if p.Record != nil {
		if err := FillRecord(k, p.Record); err != nil {
			return PendingAdd{}, err
		}
	}
	return p, nil
}

// FullRecord returns the record that promotion writes, before the verified facts are added.
func (p PendingAdd) FullRecord(k instance.Key) instance.Record {
	var rec instance.Record
	if p.Record != nil {
		rec = *p.Record
	}
	rec.V = instance.RecordVersion
	rec.Role, rec.Address = k.Role, k.Address
	rec.Scheme = cmp.Or(rec.Scheme, "http")
	rec.State = cmp.Or(rec.State, instance.Ready)
	rec.Source = cmp.Or(rec.Source, "admin")
	rec.Connector = cmp.Or(rec.Connector, p.Connector)
	return rec
}

// SourceFlags is the Source of records from the command line of a proxy.
const SourceFlags = "flags"

// The values of Order.Do.
const (
	OrderRestore = "restore"
	OrderForget  = "forget"
)

// Order is the JSON value of the key Layout.Kept.
type Order struct {
	V      int      `json:"v"`
	Do     string   `json:"do"`             // restore or forget
	Keys   []string `json:"keys,omitempty"` // role/host:port; none: everything
	By     string   `json:"by,omitempty"`
	Reason string   `json:"reason,omitempty"`
	// Earlier has the former orders to forget, oldest first, for proxies that have missed them.
	// Writers of older releases omit them.
	Earlier []Order `json:"earlier,omitempty"`
	// Revision is the mod_revision of an order in Earlier.
	Revision int64 `json:"revision,omitempty"`
}
