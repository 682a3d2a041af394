package lease

import (
	"bytes"
	"context"
	"errors"
	"fmt"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/pdmesh/pdmesh/internal/discovery/etcd"
	"github.com/pdmesh/pdmesh/internal/discovery/schema"
	"github.com/pdmesh/pdmesh/internal/instance"
)

// claim is one key of a registration, with its state in etcd.
type claim struct {
	key   instance.Key
	value []byte // wanted
	found *etcd.Found
	phase Phase // Registering: it may be written
	why   string
}

// claims reads the keys of the registration at one revision, and judges each.
func (r *Registrar) claims(ctx context.Context, rec instance.Record) ([]claim, error) {
	keys := r.o.Key.Each()
	claims := make([]claim, len(keys))
	rec.HostID = r.o.HostID
	for i, k := range keys {
		own := rec
		if err := schema.FillRecord(k, &own); err != nil {
			return nil, fmt.Errorf("register %s: %w", k, err)
		}
		value, err := schema.EncodeRecord(own)
		if err != nil {
			return nil, fmt.Errorf("register %s: %w", k, err)
		}
		claims[i] = claim{key: k, value: value}
	}
	all, err := etcd.FindAll(ctx, r.cli, r.o.Layout, keys, r.fails == 0)
	if err != nil {
		return nil, err
	}
	if err := etcd.CheckSchema(r.o.Layout, all[0].Schema); err != nil {
		return nil, err
	}
	for i := range claims {
		c := &claims[i]
		c.found = all[i]
		if c.phase, c.why = r.judge(c, rec.ID); c.why != "" && len(claims) > 1 {
			c.why = string(c.key.Role) + ": " + c.why
		}
	}
	return claims, nil
}

// judge decides from the state of a key whether this agent may write it; the phase is then
// Registering.
func (r *Registrar) judge(c *claim, id string) (phase Phase, why string) {
	f := c.found
	if f.Removed() {
		return Overridden, "removed by an operator: pdctl allow lets it register again"
	}
	switch {
	case f.Record == nil, r.leases[f.Record.Lease]: // also our own write under a lease we have lost
		return Registering, ""
	case f.Record.Lease == 0:
		return StaticPresent, "an operator has written a static record with this key; it is not overwritten"
	}
	other, _, err := schema.DecodeRecord(c.key, f.Record.Value)
	switch {
	case err != nil:
		return Conflict, "this key has a value of another owner that cannot be read: " + schema.ReasonOf(err)
	case !r.held && (other.ID != "" && other.ID == id || other.HostID != "" && other.HostID == r.o.HostID):
		// An earlier process of this agent wrote it; its lease has not expired yet.
		return Registering, ""
	case other.HostID != "" && other.HostID == r.o.HostID:
		// Another agent on this host has taken the key over from this one. It keeps the key:
		// otherwise the two would take it from each other without end.
		return Conflict, "another agent on this host has taken the key over (id " + schema.Quote(other.ID, 64) + "); stop one of the two"
	default:
		return Conflict, "another host holds this key (host id " + schema.Quote(other.HostID, 64) + ", id " + schema.Quote(other.ID, 64) +
			", agent " + schema.Quote(other.Agent, 64) + "); change the address of one of them"
	}
}

// outcome combines the results of the claims. If another party holds one of the keys, the
// registration fails as a whole. If an operator has removed one, the others stay registered, and
// why names the missing one. revision is the revision of the registered keys.
func outcome(claims []claim) (phase Phase, why string, revision int64) {
	removed := 0
	for i := range claims {
		switch c := &claims[i]; c.phase {
		case Overridden:
			removed++
			why = instance.JoinReasons(why, c.why)
		case Registering:
			if c.found.Record != nil {
				revision = max(revision, c.found.Record.ModRevision)
			}
		default:
			return c.phase, c.why, 0
		}
	}
	if removed == len(claims) {
		return Overridden, why, 0
	}
	return Registered, why, revision
}

// due returns the claims whose keys must be written. If the registration is refused, only
// keys that this registrar already holds are updated, and none is added.
func (r *Registrar) due(claims []claim, phase Phase) []*claim {
	var due []*claim
	for i := range claims {
		c := &claims[i]
		if c.phase != Registering {
			continue
		}
		ours := c.found.Record != nil && r.holds(c.found)
		if ours && bytes.Equal(c.found.Record.Value, c.value) || !ours && phase != Registered {
			continue
		}
		due = append(due, c)
	}
	return due
}

// holds reports whether the key is under the current lease.
func (r *Registrar) holds(f *etcd.Found) bool {
	id := r.keeper.state().id
	return id != 0 && f.Record.Lease == int64(id)
}

// write puts the due claims under the current lease in one transaction, unless a key that it
// depends on has changed since it was read. It returns the revision, 0 if a key has changed.
func (r *Registrar) write(ctx context.Context, claims []claim, due []*claim) (revision int64, err error) {
	id, err := r.keeper.lease(ctx)
	if err != nil {
		return 0, err
	}
	r.leases[int64(id)] = true
	l, version := r.o.Layout, claims[0].found.Schema
	compares := []clientv3.Cmp{etcd.Unchanged(l.Schema(), version)}
	for i := range claims {
		f, key := claims[i].found, l.Instance(claims[i].key)
		compares = append(compares, etcd.Unchanged(key, f.Record), etcd.Unchanged(l.Override(claims[i].key), f.Override))
		if f.Record != nil {
			compares = append(compares, clientv3.Compare(clientv3.LeaseValue(key), "=", f.Record.Lease))
		}
	}
	var ops []clientv3.Op
	renewed := true // only values change
	for _, c := range due {
		ops = append(ops, clientv3.OpPut(l.Instance(c.key), string(c.value), clientv3.WithLease(id)))
		renewed = renewed && c.found.Record != nil && c.found.Record.Lease == int64(id)
	}
	if version == nil {
		ops = append(ops, clientv3.OpPut(l.Schema(), schema.VersionValue))
	}
	cctx, cancel := context.WithTimeout(ctx, etcd.CallTimeout)
	defer cancel()
	resp, err := r.cli.Txn(cctx).If(compares...).Then(ops...).Commit()
	switch {
	case errors.Is(err, rpctypes.ErrLeaseNotFound):
		r.keeper.forget(id)
		return 0, fmt.Errorf("register %s: %w", r.o.Key, err)
	case err != nil:
		// It may have been applied; the next attempt reads the keys first.
		return 0, etcd.Explain(ctx, r.cli, "register "+r.o.Key.String(), err, r.fails == 0)
	case !resp.Succeeded:
		return 0, nil
	}
	if !renewed {
		if r.Status().Phase.Holds() { // the loss was not noticed before
			r.log.Warn("key was missing in etcd: registered again")
		}
		r.mu.Lock()
		r.status.Registrations++
		r.mu.Unlock()
	}
	return resp.Header.Revision, nil
}
