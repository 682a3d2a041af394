package member

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/pdmesh/pdmesh/internal/cli/sleep"
	"github.com/pdmesh/pdmesh/internal/discovery/etcd"
	"github.com/pdmesh/pdmesh/internal/discovery/schema"
	"github.com/pdmesh/pdmesh/internal/discovery/store"
	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/internal/pdctl/session"
)

// blockPoll is the interval at which add --block reads the membership.
const blockPoll = 500 * time.Millisecond

// pending writes a pending add for an instance that does not answer yet. The first proxy that
// gets an answer from it adds it.
func (a *adder) pending(ctx context.Context, k instance.Key, rec instance.Record, why error) session.Result {
	f := a.flags
	r := session.Result{Role: k.Role, Address: k.Address}
	p := schema.PendingAdd{Model: f.model, Connector: f.connector, Record: &rec}
	outcome, err := a.conn.Store.Instances.AddPending(ctx, k, p, f.limit, f.reason)
	if err != nil {
		return r.Failed("%w", err)
	}
	if outcome == store.Waiting {
		r.Outcome, r.Text = "waiting", why.Error()
		if f.limit > 0 {
			r.Text += fmt.Sprintf(" (for %s)", f.limit)
		}
		return r
	}
	r.Outcome = "already"
	return r
}

// warnWithoutProxy warns if no proxy is present that could process pending adds.
func (a *adder) warnWithoutProxy(ctx context.Context) {
	if proxies, err := a.conn.Store.Reader.Proxies(ctx); err == nil && len(proxies) == 0 {
		fmt.Fprintln(a.Out.Stderr, "Note: no proxy uses this etcd now; the first proxy that starts will process the pending adds.")
	}
}

// block waits until no pending add is left, and prints and returns the results; with an error,
// those until then.
func (a *adder) block(ctx context.Context, waiting map[instance.Key]bool) (map[instance.Key]session.Result, error) {
	settled := make(map[instance.Key]session.Result)
	for len(waiting) > 0 {
		if !sleep.For(ctx, blockPoll) {
			return settled, errors.New("interrupted; the pending adds stay (pdctl remove deletes them)")
		}
		snap, err := a.conn.Store.Reader.Snapshot(ctx)
		switch {
		case errors.Is(err, etcd.ErrUnreachable), ctx.Err() != nil:
			continue // wait for etcd, too
		case err != nil:
			return settled, err
		}
		for k := range waiting {
			in, there := snap.Lookup(k)
			r := session.Result{Role: k.Role, Address: k.Address}
			switch {
			case there && in.View != instance.Rejected && in.Intent != instance.Removed:
				r.Outcome, r.Text, r.Models = "added", "added", in.List().Models
			case snap.Waiting(k):
				continue
			default:
				r = r.Failed("the pending add has ended: it has expired or was removed")
			}
			settled[k] = r
			delete(waiting, k)
			a.Line(r)
		}
	}
	return settled, nil
}
