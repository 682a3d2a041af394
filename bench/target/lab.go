// Package target starts what is measured, as processes pinned to one core, and an etcd in
// which the engines are registered for our proxy. Lab.Close stops everything.
package target

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/pdmesh/pdmesh/bench/answer"
	"github.com/pdmesh/pdmesh/bench/machine"
	"github.com/pdmesh/pdmesh/internal/discovery/etcd"
	"github.com/pdmesh/pdmesh/internal/discovery/schema"
	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/sim/fleet"
)

// Options are the options of a Lab.
type Options struct {
	BinDir string // directory with our programs
	Core   string // core of the targets; "" does not pin them
	Files  int    // limit of descriptors of this process and its children; 0 means 1024
}

// Lab owns the processes and their directory. It is not safe for concurrent use.
type Lab struct {
	o     Options
	pin   []string // command before that of a target
	fleet *fleet.Fleet
	dir   string // of logs and configuration
	n     int    // of processes
}

// NewLab returns a Lab without processes.
func NewLab(o Options) (*Lab, error) {
	var pin []string
	if o.Core != "" {
		taskset, err := exec.LookPath("taskset") // it is replaced by the program
		if err != nil {
			return nil, fmt.Errorf("pin targets: install util-linux, or use --pin off for a run without meaningful figures: %w", err)
		}
		pin = []string{taskset, "-c", o.Core}
	}
	f, err := fleet.New(fleet.Options{BinDir: o.BinDir})
	if err != nil {
		return nil, err
	}
	return &Lab{o: o, pin: pin, fleet: f, dir: f.Dir()}, nil
}

// Close kills all processes, and removes their logs and generated configuration.
func (l *Lab) Close() error { return l.fleet.Abandon() }

// Running is a target that serves.
type Running struct {
	Address string // host:port
	process *fleet.Process
}

// PIDs returns its process and the descendants of it.
func (r *Running) PIDs() []int { return machine.Tree(r.process.PID()) }

// Stop stops the target, and removes its log; after 3 s it is killed.
func (r *Running) Stop() {
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Second)
	defer cancel()
	_ = r.process.Stop(ctx) // reports that the process had to be killed
	_ = os.Remove(r.process.LogFile())
}

// Err returns an error with the end of the output if the target has ended.
func (r *Running) Err() error {
	select {
	case <-r.process.Done():
		return fmt.Errorf("the target ended: %s", r.process.LogTail(20))
	default:
		return nil
	}
}

// launch starts a program, and blocks until url answers with status 200.
func (l *Lab) launch(ctx context.Context, name, url, program string, args []string) (*fleet.Process, error) {
	l.n++
	command := slices.Concat(l.pin, []string{program}, args)
	return l.fleet.Start(ctx, fleet.Spec{
		Name: fmt.Sprintf("%s-%d", name, l.n), Program: command[0], Args: command[1:],
		Ready: func(ctx context.Context) error { return l.fleet.Get(ctx, url, nil) },
	})
}

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
