package lease

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"time"

	"github.com/sirupsen/logrus"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/pdmesh/pdmesh/internal/cli/background"
	"github.com/pdmesh/pdmesh/internal/cli/sleep"
	"github.com/pdmesh/pdmesh/internal/discovery/etcd"
	"github.com/pdmesh/pdmesh/internal/discovery/schema"
	"github.com/pdmesh/pdmesh/internal/instance"
)

// RefusedAgent is an agent whose instance is not registered, with the reason. It is in etcd
// under a separate lease while that is the case, so that it is visible on other machines. It
// does not affect the membership.
type RefusedAgent struct {
	V            int           `json:"v"`
	ID           string        `json:"id"` // of the agent's process
	Role         instance.Role `json:"role"`
	Address      string        `json:"address"`
	Host         string        `json:"host,omitempty"`  // name of its machine
	Agent        string        `json:"agent,omitempty"` // its version
	Phase        string        `json:"phase"`           // its name in internal/agent
	Registration Phase         `json:"registration"`
	Reason       string        `json:"reason"`
	Since        time.Time     `json:"since"` // by its clock
}

const (
	// refusedAfter is how long a refusal must last before it is published.
	refusedAfter = 5 * time.Second
	refusedPoll  = time.Second
	// refusedAgain is the least time between two writes of one agent, however often its reason
	// changes. refusedDenied is that time after etcd has denied a write.
	refusedAgain  = 10 * time.Second
	refusedDenied = time.Minute
	// maxRefusedReason bounds the reason, in bytes.
	maxRefusedReason = 600
)

// RefusedWriter publishes in etcd that an agent is refused. It writes when the refusal begins, when
// its reason changes, and when it ends, but nothing while the agent is registered.
type RefusedWriter struct {
	cli    *clientv3.Client
	layout schema.Layout
	key    string
	log    logrus.FieldLogger
	keeper *leaseKeeper

	since   time.Time // start of the refusal; zero: not refused
	written string    // value in etcd, "" for none
	next    time.Time // earliest time of the next write
}

// NewRefusedWriter returns a RefusedWriter for the agent with this id.
func NewRefusedWriter(cli *clientv3.Client, l schema.Layout, id string, ttl time.Duration, log logrus.FieldLogger) *RefusedWriter {
	return &RefusedWriter{cli: cli, layout: l, key: l.Agent(id), log: etcd.LogOrDiscard(log), keeper: newLeaseKeeper(cli, ttl)}
}

// Run calls ask every second until ctx ends, and publishes the result; nil means registered, or
// about to be. Then it waits for its goroutines, and deletes the key.
func (w *RefusedWriter) Run(ctx context.Context, ask func() *RefusedAgent) {
	stop := background.Start(ctx, w.keeper.run)
	sleep.Every(ctx, refusedPoll, func(now time.Time) { w.update(ctx, ask(), now) })
	stop()
	w.take(context.WithoutCancel(ctx))
}

// update updates the published reason in etcd.
func (w *RefusedWriter) update(ctx context.Context, a *RefusedAgent, now time.Time) {
	if a == nil {
		w.since = time.Time{}
		w.take(ctx)
		return
	}
	if w.since.IsZero() {
		w.since = now
	}
	if now.Sub(w.since) < refusedAfter || now.Before(w.next) {
		return
	}
	a.V, a.Since = instance.RecordVersion, w.since.UTC().Truncate(time.Second)
	a.Reason = instance.Printable(a.Reason, maxRefusedReason)
	value, _ := json.Marshal(a) // cannot fail: strings and a time of today
	if string(value) == w.written && w.keeper.state().id != 0 {
		return
	}
	w.next = now.Add(etcd.Jitter(refusedAgain))
	if err := w.write(ctx, string(value)); err != nil {
		if errors.Is(err, rpctypes.ErrPermissionDenied) {
			w.next = now.Add(etcd.Jitter(refusedDenied)) // its etcd role is older than this key
		}
		w.log.WithError(err).Debug("cannot publish in etcd that the instance is not registered")
		return
	}
	w.written = string(value)
}

// take deletes the key with its lease.
func (w *RefusedWriter) take(ctx context.Context) {
	if err := w.keeper.revoke(ctx); err != nil {
		w.log.WithError(err).Debug("cannot revoke the lease; the key expires with it")
	}
	w.written = ""
}

// write puts the value into the key of this agent, under its lease.
func (w *RefusedWriter) write(ctx context.Context, value string) error {
	cctx, cancel := context.WithTimeout(ctx, etcd.CallTimeout)
	defer cancel()
	resp, err := w.cli.Get(cctx, w.layout.Schema())
	if err != nil {
		return err
	}
	version := etcd.Single(resp.Kvs)
	if err := etcd.CheckSchema(w.layout, version); err != nil {
		return err
	}
	id, err := w.keeper.lease(cctx)
	if err != nil {
		return err
	}
	ops := []clientv3.Op{clientv3.OpPut(w.key, value, clientv3.WithLease(id))}
	if version == nil {
		ops = append(ops, clientv3.OpPut(w.layout.Schema(), schema.VersionValue))
	}
	done, err := w.cli.Txn(cctx).If(etcd.Unchanged(w.layout.Schema(), version)).Then(ops...).Commit()
	switch {
	case errors.Is(err, rpctypes.ErrLeaseNotFound):
		w.keeper.forget(id)
		return err
	case err == nil && !done.Succeeded:
		return errors.New("the schema has changed meanwhile")
	}
	return err
}

// ReadRefused decodes the keys of refused agents. It skips values that cannot be decoded, which is
// safe: they are only displayed.
func ReadRefused(l schema.Layout, kvs []*mvccpb.KeyValue) (out []RefusedAgent) {
	for _, kv := range kvs {
		var a RefusedAgent
		if len(kv.Value) > maxRefusedValue || json.Unmarshal(kv.Value, &a) != nil {
			continue
		}
		if _, err := instance.ParseRoles(string(a.Role)); err != nil {
			continue
		}
		if _, err := instance.ParseAddress(a.Address); err != nil {
			continue
		}
		a.ID = strings.TrimPrefix(string(kv.Key), l.Agent(""))
		out = append(out, a)
	}
	return out
}

// maxRefusedValue bounds a value, in bytes. No agent writes as much.
const maxRefusedValue = 4 << 10
