// Package store makes the changes of operators, each in one transaction with its audit entry, and
// the reads that they need. Each type does one kind of work:
//
//	Instances    add, wait for, remove, allow, the command line of a proxy
//	Intents      drain, cordon, weight, role
//	Documents    limits of keys, model routes
//	Kept         restore or forget entries of a former etcd
//	Edits        several keys at once; undo
//	WatchWriter  the writes of a proxy's watch.Watcher
//	Reader       all reads
//
// The types that write share writer, which makes the transaction with its audit entry.
package store

import (
	"context"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/pdmesh/pdmesh/internal/discovery/schema"
)

// Store holds the parts over one client, for a program that needs several of them. All are
// safe for concurrent use.
type Store struct {
	Instances *Instances
	Intents   *Intents
	Documents *Documents
	Kept      *Kept
	Edits     *Edits
	Watch     *WatchWriter
	Reader    *Reader

	writer *writer
}

// New returns a Store. actor is the author of changes in audit entries, for example "pdctl
// root@host" or "proxy <id>".
func New(cli *clientv3.Client, l schema.Layout, actor string) *Store {
	c := client{cli: cli, layout: l}
	w := &writer{client: c, actor: actor, maxAudit: maxAudit}
	return &Store{
		Instances: &Instances{w}, Intents: &Intents{w}, Documents: &Documents{w}, Kept: &Kept{w}, Edits: &Edits{w}, Watch: &WatchWriter{w},
		Reader: &Reader{c}, writer: w,
	}
}

// EnsureSchema writes the schema key if there is none, and checks it if there is.
func (s *Store) EnsureSchema(ctx context.Context) error { return s.writer.ensureSchema(ctx) }
