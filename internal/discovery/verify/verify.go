// Package verify decides, by the answers of instances to probes, whether they are used, and
// completes their facts. It sends no requests.
package verify

import (
	"cmp"
	"fmt"
	"strings"

	"github.com/pdmesh/pdmesh/internal/instance"
)

// Facts are the results of the probes of this process, and the rules by which it judges them.
// The zero value is for a reader that probes no instance.
type Facts struct {
	// Model is the model that every instance must serve, see instance.Facts.Serves; "" accepts any.
	Model string
	// Probing reports whether the builder of the snapshot will probe instances whose
	// record does not list the model. Without it such an instance is rejected
	// at once, since its root names, which could match, stay unknown.
	Probing bool
	// Proxy is the name of the proxy whose fleet is shown; records of others are shown as elsewhere.
	// "" accepts all.
	Proxy string
	// Check refuses records that the reader cannot use; nil refuses none.
	Check func(instance.Key, instance.Record) error
	// Learns selects the records that lack required engine ids. Their engines are probed repeatedly,
	// since only a probe shows that one has restarted. nil selects none.
	Learns func(instance.Key, instance.Record) bool
	// Instances holds the answers, by membership.
	Instances map[instance.Key]*Answer
	// Models holds the lists of models that were read later, by membership.
	Models map[instance.Key]*Models
	// Pending has the reasons why pending adds are still pending.
	Pending map[instance.Key]Wait
}

// Wait is the reason why the pending add of one revision is still pending.
type Wait struct {
	ModRevision int64
	Reason      string // printable
}

// Models is the list of models that this process has read from an engine, apart from the probe
// that verified it. It is immutable.
type Models struct {
	// Incarnation, ModRevision and Lease are those of the instance when the read began. After
	// a wipe of etcd, another record may have the same revision.
	Incarnation        string
	ModRevision, Lease int64
	Names              []string
	Truncated          bool // see instance.Facts.ModelsTruncated
}

// replaces reports whether the list is newer than that of the record. An agent keeps its record
// up to date, so that the record counts again once it has been rewritten.
func (m *Models) replaces(in *instance.Instance) bool {
	return m != nil && m.Incarnation == in.Incarnation() &&
		(m.ModRevision == in.ModRevision && m.Lease == in.Lease || !in.Maintained() || in.Record.ModelsTruncated)
}

// Answer is the outcome of one probe of an instance. It is immutable.
type Answer struct {
	// Incarnation is that of the probed engine; the answer is valid for no other.
	Incarnation string
	// Facts are those of the answer; nil if there was none.
	Facts *instance.Facts
	// Mismatch reports whether the instance answered and serves another model.
	Mismatch bool
	// Silent reports whether the instance did not answer in time; it may be slow.
	Silent bool
	// Reason describes the problem, printable; "" if there is none.
	Reason string
}

// NotVerified is the reason of an instance that has not been probed yet.
const NotVerified = "not verified yet: waits for an answer to /v1/models"

// OK reports whether the instance answered and serves the right model.
func (a *Answer) OK() bool { return a != nil && a.Facts != nil && !a.Mismatch }

// OtherFleet begins the reason for an instance whose record belongs to the fleet of other proxies.
const OtherFleet = "it belongs to the fleet of "

// Elsewhere reports whether a record belongs to the fleet of other proxies.
func (f *Facts) Elsewhere(rec *instance.Record) bool {
	return f.Proxy != "" && !rec.For(f.Proxy)
}

// Refuses returns why the reader cannot use a record, nil if it can.
func (f *Facts) Refuses(k instance.Key, rec instance.Record) error {
	if f.Check == nil {
		return nil
	}
	return f.Check(k, rec)
}

// MustLearn reports whether the engine ids must be read from the engine; see Learns.
func (f *Facts) MustLearn(k instance.Key, rec instance.Record) bool {
	return f.Learns != nil && f.Learns(k, rec)
}

// Apply decides whether the models of an instance are known and accepted, and fills in the models
// that were read last.
func (f *Facts) Apply(in *instance.Instance, answer *Answer, say func(string, ...any)) {
	f.judge(in, answer, say)
	if m := f.Models[in.Key]; in.Verified && m.replaces(in) {
		in.Record.Models, in.Record.ModelsTruncated, in.ModelsRead = m.Names, m.Truncated, true
	}
}

func (f *Facts) judge(in *instance.Instance, answer *Answer, say func(string, ...any)) {
	if answer != nil && answer.Incarnation != in.Incarnation() {
		answer = nil
	}
	listed, learns := len(in.Record.Models) > 0, f.MustLearn(in.Key, in.Record)
	if listed && !learns && (&instance.Facts{Models: in.Record.Models}).Serves(f.Model, false) {
		in.Verified = true
		return
	}
	switch {
	case answer.OK():
		in.Verified = true
		if !listed {
			in.Record, in.Learned = WithFacts(in.Record, *answer.Facts), true
		}
		if learns {
			in.Record = withEngineIDs(in.Record, answer.Facts.EngineIDs)
		}
		// Check may refuse the record for the facts that were added.
		if err := f.Refuses(in.Key, in.Record); err != nil {
			in.Verified, in.View = false, instance.Rejected
			say("%s", instance.Printable(err.Error(), 300))
		}
	case answer != nil && answer.Mismatch:
		in.View = instance.Rejected
		say("%s", answer.Reason)
	case listed && !learns && !f.Probing:
		in.View = instance.Rejected
		say("%s", WrongModel(in.Record.Models, f.Model))
	default:
		in.View = instance.Unverified
		if answer != nil && answer.Reason != "" {
			say("%s", answer.Reason)
		} else if learns {
			say("not verified yet: waits for an answer to /v1/models and of its bootstrap server")
		} else {
			say(NotVerified)
		}
	}
}

// WithFacts completes a record with the facts of its engine. It replaces the models; other fields
// that the record has stay.
func WithFacts(rec instance.Record, f instance.Facts) instance.Record {
	rec.Models, rec.ModelsTruncated = f.Models, f.ModelsTruncated
	rec.MaxModelLen = cmp.Or(rec.MaxModelLen, f.MaxModelLen)
	rec.Version = cmp.Or(rec.Version, f.Version)
	if rec.DPSize == 0 && f.DPSize > 1 {
		rec.DPSize = f.DPSize
	}
	rec.Transfer = cmp.Or(rec.Transfer, f.Transfer)
	if rec.StartedAt == nil && !f.StartedAt.IsZero() {
		rec.StartedAt = &f.StartedAt
	}
	return rec
}

// withEngineIDs completes a record with the answer of the bootstrap server of its engine.
// The id of its first rank, which differs after each restart, is the incarnation if the
// record has none.
func withEngineIDs(rec instance.Record, ids map[string]string) instance.Record {
	rec.EngineIDs = ids
	if rec.DPSize == 0 && len(ids) > 1 {
		rec.DPSize = len(ids)
	}
	rec.ID = cmp.Or(rec.ID, (&instance.Instance{Record: rec}).EngineID(0))
	return rec
}

// WrongModel returns the text that an instance serves other models.
func WrongModel(have []string, want string) string {
	shown := have[:min(len(have), 3)]
	return fmt.Sprintf("serves %s, not %s", instance.Printable(strings.Join(shown, ", "), 200), instance.Printable(want, 200))
}
