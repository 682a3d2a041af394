package target

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/sirupsen/logrus"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/pdmesh/pdmesh/bench/answer"
	"github.com/pdmesh/pdmesh/internal/discovery/embedetcd"
	"github.com/pdmesh/pdmesh/internal/discovery/schema"
	"github.com/pdmesh/pdmesh/internal/instance"
)

// Etcd is an etcd for our proxies.
type Etcd struct {
	Endpoint string
	server   *embedetcd.Server
	client   *clientv3.Client
	log      *os.File
}

// StartEtcd starts an etcd in this process. It does not wait for the disk, and Register
// writes to it without a network, so that it takes little time of the core that it shares
// with the engines.
func (l *Lab) StartEtcd(ctx context.Context) (_ *Etcd, err error) {
	e := new(Etcd)
	if e.log, err = os.Create(filepath.Join(l.dir, "etcd.log")); err != nil {
		return nil, fmt.Errorf("start etcd: %w", err)
	}
	log := logrus.New()
	log.SetOutput(e.log)
	e.server, err = embedetcd.Start(ctx, embedetcd.Config{
		ListenClient: "127.0.0.1:0", DataDir: filepath.Join(l.dir, "etcd"), Log: log, Unsynced: true,
	})
	if err != nil {
		return nil, errors.Join(err, e.log.Close())
	}
	e.Endpoint, e.client = e.server.Endpoint(), e.server.Client()
	return e, nil
}

// Close stops it.
func (e *Etcd) Close() {
	_ = e.client.Close() // returns only that its context has ended
	e.server.Close()
	_ = e.log.Close() // nothing was buffered
}

// Register writes a record for each instance, with a lease that outlasts any run.
func (e *Etcd) Register(ctx context.Context, prefix, connector string, prefill, decode []string) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	layout, err := schema.NewLayout(prefix)
	if err != nil {
		return err
	}
	const ttl = 7 * 24 * 3600
	lease, err := e.client.Grant(ctx, ttl)
	if err != nil {
		return fmt.Errorf("register: %w", err)
	}
	for role, addrs := range map[instance.Role][]string{instance.Prefill: prefill, instance.Decode: decode} {
		for _, addr := range addrs {
			value, err := schema.EncodeRecord(instance.Record{
				ID: "bench-" + addr, Role: role, Address: addr, Models: []string{answer.Model},
				Connector: connector, State: instance.Ready, Source: "direct",
			})
			if err != nil {
				return err
			}
			key := instance.Key{Role: role, Address: addr}
			if _, err := e.client.Put(ctx, layout.Instance(key), string(value), clientv3.WithLease(lease.ID)); err != nil {
				return fmt.Errorf("register %s: %w", key, err)
			}
		}
	}
	return nil
}
