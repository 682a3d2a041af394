package store

import (
	"context"
	"errors"
	"slices"

	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/pdmesh/pdmesh/internal/discovery/etcd"
	"github.com/pdmesh/pdmesh/internal/discovery/lease"
	"github.com/pdmesh/pdmesh/internal/discovery/loaddigest"
	"github.com/pdmesh/pdmesh/internal/discovery/schema"
	"github.com/pdmesh/pdmesh/internal/instance"
)

// Reports has the presences and load digests of the proxies, and the intents of some instances, all
// at one revision.
type Reports struct {
	Revision int64
	Proxies  []lease.ProxyPresence
	Loads    []*loaddigest.ProxyLoad
	// Intents has the intents of the requested instances. Instances without one are left out.
	Intents map[instance.Key]Standing
}

// Standing is an intent, and the revision at which its key was written last.
type Standing struct {
	Intent   instance.Intent
	Revision int64
}

// Reports reads the presences and load digests of the proxies, and the intents of instances.
func (r *Reader) Reports(ctx context.Context, keys []instance.Key) (Reports, error) {
	ops := []clientv3.Op{
		clientv3.OpGet(r.layout.Proxy(""), clientv3.WithPrefix()),
		clientv3.OpGet(r.layout.Load(""), clientv3.WithPrefix()),
	}
	const most = 100 // a transaction holds 128 operations
	each := len(keys) <= most
	if each {
		for _, k := range keys {
			ops = append(ops, clientv3.OpGet(r.layout.Override(k)))
		}
	} else {
		ops = append(ops, clientv3.OpGet(r.layout.Overrides(), clientv3.WithPrefix()))
	}
	resp, err := r.txn(ctx, "read the reports of the proxies", nil, ops)
	if err != nil {
		return Reports{}, err
	}
	kvs := func(i int) []*mvccpb.KeyValue { return resp.Responses[i].GetResponseRange().Kvs }
	t := Reports{
		Revision: resp.Header.Revision, Proxies: lease.ReadProxies(r.layout, kvs(0)), Loads: loaddigest.Decode(r.layout, kvs(1)),
		Intents: map[instance.Key]Standing{},
	}
	for i := 2; i < len(ops); i++ {
		for _, kv := range kvs(i) {
			n := r.layout.Parse(string(kv.Key))
			if o, err := schema.DecodeOverride(kv.Value); err == nil && o.State != "" {
				t.Intents[n.Key] = Standing{o.State, kv.ModRevision}
			}
		}
	}
	return t, nil
}

// Changed returns the roles and folders whose keys differ between two revisions of the membership. It
// returns both roles if etcd has compacted one of the revisions away.
func (r *Reader) Changed(ctx context.Context, a, b int64) (changed []instance.Role, err error) {
	roles := []instance.Role{instance.Prefill, instance.Decode}
	switch {
	case a <= 0 || b <= 0: // 0 would be the newest
		return roles, nil
	case a == b:
		return nil, nil
	}
	type fact struct {
		key string
		mod int64
	}
	var facts [2]map[instance.Role][]fact
	for i, revision := range []int64{a, b} {
		facts[i] = map[instance.Role][]fact{}
		for _, prefix := range r.layout.ListedPrefixes() {
			cctx, cancel := context.WithTimeout(ctx, etcd.CallTimeout)
			resp, err := r.cli.Get(cctx, prefix, clientv3.WithPrefix(), clientv3.WithKeysOnly(), clientv3.WithRev(revision))
			cancel()
			switch {
			case errors.Is(err, rpctypes.ErrCompacted), errors.Is(err, rpctypes.ErrFutureRev):
				return roles, nil
			case err != nil:
				return nil, etcd.Explain(ctx, r.cli, "list the membership of the past", err, true)
			}
			for _, kv := range resp.Kvs {
				role := r.layout.Parse(string(kv.Key)).Role
				facts[i][role] = append(facts[i][role], fact{string(kv.Key), kv.ModRevision})
			}
		}
	}
	for _, role := range append(roles, schema.Folders()...) {
		if !slices.Equal(facts[0][role], facts[1][role]) {
			changed = append(changed, role)
		}
	}
	return changed, nil
}
