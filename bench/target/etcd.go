package target

import (
	"context"
	"fmt"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/pdmesh/pdmesh/bench/answer"
	"github.com/pdmesh/pdmesh/internal/discovery/etcd"
	"github.com/pdmesh/pdmesh/internal/discovery/schema"
	"github.com/pdmesh/pdmesh/internal/instance"
)

// Etcd is an etcd for our proxies. It runs until the Lab is closed.
type Etcd struct {
	Endpoint string
	client   *clientv3.Client
}

// StartEtcd starts an etcd that does not wait for the disk.
func (l *Lab) StartEtcd(ctx context.Context) (*Etcd, error) {
	members, err := l.fleet.StartEtcd(ctx, 1, "--unsafe-no-fsync")
	if err != nil {
		return nil, err
	}
	e := &Etcd{Endpoint: members[0].Spec.Client}
	e.client, err = etcd.Dial(etcd.Config{Endpoints: []string{e.Endpoint}})
	return e, err
}

// Close closes the connections to it.
func (e *Etcd) Close() { _ = e.client.Close() } // returns only that its context has ended

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
