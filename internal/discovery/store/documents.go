package store

import (
	"bytes"
	"context"
	"fmt"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/pdmesh/pdmesh/internal/discovery/etcd"
	"github.com/pdmesh/pdmesh/internal/discovery/schema"
	"github.com/pdmesh/pdmesh/internal/instance"
)

// Documents reads and writes settings of the fleet, see schema.Layout.Document. Their values are
// checked by the packages that use them.
type Documents struct{ *writer }

// DocumentOptions are the options of a change.
type DocumentOptions struct {
	Reason string
	// For is the time after which the document expires, at least 2 s; 0 means that it stays until it
	// is deleted.
	For time.Duration
}

// List reads the documents in a folder, by name. Values that cannot be used are included.
func (s *Documents) List(ctx context.Context, folder instance.Role) ([]instance.Document, error) {
	kvs, err := s.get(ctx, "list "+string(folder), s.layout.Document(instance.Key{Role: folder}), clientv3.WithPrefix())
	if err != nil {
		return nil, err
	}
	out := make([]instance.Document, 0, len(kvs))
	for _, kv := range kvs {
		n := s.layout.Parse(string(kv.Key))
		out = append(out, instance.Document{Key: n.Key, Value: kv.Value, Revision: kv.ModRevision})
	}
	return out, nil
}

// Put writes a document. It returns the revision of the change, 0 if etcd has this value already
// and neither the old nor the new one has a time limit.
func (s *Documents) Put(ctx context.Context, k instance.Key, value []byte, o DocumentOptions) (int64, error) {
	return s.change(ctx, k, o, func(old *mvccpb.KeyValue) (string, []byte, error) {
		if err := schema.CheckDocument(k, value); err != nil {
			return "", nil, err
		}
		if old != nil && bytes.Equal(old.Value, value) && o.For == 0 && old.Lease == 0 {
			return "", nil, nil
		}
		return "set", value, nil
	})
}

// Delete deletes a document. It returns the revision of the change, 0 if there is no document.
func (s *Documents) Delete(ctx context.Context, k instance.Key, reason string) (int64, error) {
	return s.change(ctx, k, DocumentOptions{Reason: reason}, func(old *mvccpb.KeyValue) (string, []byte, error) {
		if old == nil {
			return "", nil, s.kept(ctx, schema.KindDocument, k)
		}
		return "delete", nil, nil
	})
}

// change reads a document, calls decide, and applies the result in one transaction with its audit
// entry. what is "" for no change; value is nil to delete the document. It starts over if the
// document has changed meanwhile.
func (s *Documents) change(ctx context.Context, k instance.Key, o DocumentOptions, decide func(old *mvccpb.KeyValue) (what string, value []byte, err error)) (int64, error) {
	if o.For != 0 && o.For < minIntent {
		return 0, fmt.Errorf("%w: for %s; %s at least", ErrIntent, o.For, minIntent)
	}
	if err := s.ensureSchema(ctx); err != nil {
		return 0, err
	}
	key := s.layout.Document(k)
	return s.retry(ctx, k, o.Reason, func(ctx context.Context) (plan, error) {
		kvs, err := s.get(ctx, "read "+k.String(), key)
		if err != nil {
			return plan{}, err
		}
		was := etcd.Single(kvs)
		what, value, err := decide(was)
		if err != nil || what == "" {
			return plan{}, err
		}
		p := plan{what: what, lease: o.For, compares: []clientv3.Cmp{etcd.Unchanged(key, was)}, found: map[string]*mvccpb.KeyValue{key: was}}
		if value == nil {
			p.ops = []clientv3.Op{clientv3.OpDelete(key)}
		} else {
			p.timed = []keyValue{{key, value}}
		}
		return p, nil
	})
}
