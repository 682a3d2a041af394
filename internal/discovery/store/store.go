// Package store makes the writes of operators, each in one transaction with its audit
// entry, and the reads that serve them. Each type is one kind of work:
//
//	Instances    add, wait for, remove, allow, the command line of a proxy
//	Intents      drain, cordon, weight
//	Documents    limits of keys, model routes
//	Kept         restore or forget what a former etcd held
//	Edits        several keys at once; undo
//	WatchWriter  what a proxy's watch.Watcher writes
//	Reader       all that is only read
//
// The writing ones use writer, which has the transaction and its audit entry.
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

// New makes a Store. actor says in audit entries who did it, for example
// "pdctl root@host" or "proxy <id>".
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
