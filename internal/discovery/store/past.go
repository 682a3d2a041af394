package store

import (
	"context"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/pdmesh/pdmesh/internal/discovery/etcd"
	"github.com/pdmesh/pdmesh/internal/discovery/schema"
	"github.com/pdmesh/pdmesh/internal/instance"
)

// Past is one change of the membership in the history of etcd.
type Past struct {
	Revision int64
	Kind     schema.Kind  // KindInstance, KindPending or KindOverride
	Key      instance.Key // as spelled in etcd
	Deleted  bool
	Created  bool // there was no such key before
	Value    []byte
}

// pastSilence is the time without a change after which the history counts as complete.
const pastSilence = time.Second

// Past reads the changes of the membership in etcd's history, oldest first. since is the revision
// at which the history begins: etcd has compacted earlier ones away.
func (r *Reader) Past(ctx context.Context) (changes []Past, since int64, err error) {
	now, err := etcd.Ping(ctx, r.cli, r.layout)
	if err != nil {
		return nil, 0, err
	}
	for since = 1; ; {
		var oldest int64
		if changes, oldest, err = r.pastFrom(ctx, since, now); oldest <= since {
			return changes, since, err
		}
		since = oldest
	}
}

// pastFrom reads the changes from a revision up to now. If etcd has compacted that revision away,
// oldest is the first one that can be read.
func (r *Reader) pastFrom(ctx context.Context, since, now int64) (out []Past, oldest int64, err error) {
	wctx, stop := etcd.WatchContext(ctx)
	defer stop()
	events := r.cli.Watch(wctx, r.layout.WatchStart(), clientv3.WithRange(r.layout.WatchEnd()), clientv3.WithRev(since))
	silence := time.NewTimer(etcd.CallTimeout)
	defer silence.Stop()
	ask := time.NewTicker(50 * time.Millisecond)
	defer ask.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil, 0, ctx.Err()
		case <-silence.C:
			return out, 0, nil
		case <-ask.C:
			// etcd answers once it has sent all events; some versions never do.
			_ = r.cli.RequestProgress(wctx)
		case resp, ok := <-events:
			switch {
			case !ok:
				return out, 0, nil
			case resp.CompactRevision > 0:
				return nil, resp.CompactRevision, resp.Err()
			case resp.Err() != nil:
				return nil, 0, etcd.Explain(ctx, r.cli, "read what etcd remembers", resp.Err(), true)
			case resp.IsProgressNotify() && resp.Header.Revision >= now:
				return out, 0, nil
			}
			for _, ev := range resp.Events {
				if p, ok := r.past(ev); ok && ev.Kv.ModRevision <= now {
					out = append(out, p)
				}
				if ev.Kv.ModRevision > now {
					return out, 0, nil
				}
			}
			if len(resp.Events) > 0 {
				silence.Reset(pastSilence)
			}
		}
	}
}

func (r *Reader) past(ev *clientv3.Event) (Past, bool) {
	n := r.layout.Parse(string(ev.Kv.Key))
	return Past{
		Revision: ev.Kv.ModRevision, Kind: n.Kind, Key: n.Key,
		Deleted: ev.Type == mvccpb.Event_DELETE, Created: ev.IsCreate(), Value: ev.Kv.Value,
	}, n.Kind == schema.KindInstance || n.Kind == schema.KindPending || n.Kind == schema.KindOverride
}
