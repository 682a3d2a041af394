// Package static has the instances of a proxy's command line.
package static

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/pdmesh/pdmesh/internal/discovery/schema"
	"github.com/pdmesh/pdmesh/internal/discovery/store"
	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/internal/proxy/config"
)

// Name returns the name of a proxy in the records of its static instances. It is the same
// after a restart: the listen address, prefixed with the host name if proxies on other
// machines may use the same etcd. It is "" for a proxy without such instances.
func Name(cfg *config.Proxy, address string) string {
	if len(cfg.Prefill)+len(cfg.Decode) == 0 {
		return ""
	}
	if ap, err := netip.ParseAddrPort(address); err == nil && (ap.Addr().IsUnspecified() || ap.Addr().IsLoopback()) {
		address = fmt.Sprintf("127.0.0.1:%d", ap.Port()) // the name does not depend on --host
	}
	if cfg.EtcdIsLoopback() {
		return address
	}
	host, err := os.Hostname()
	if err != nil || strings.Contains(host, "/") {
		return address
	}
	return host + "/" + address
}

// Instances are the instances of the command line.
type Instances struct {
	Proxy   string // name of this proxy in their records; "" without instances
	Records map[instance.Key]instance.Record
	Keys    []instance.Key // of Records
	members func() *instance.Snapshot
	since   time.Time
}

// flagGrace bounds the time that readiness waits for the instances of the command line.
const flagGrace = 5 * time.Second

// New returns the instances of a configuration; proxy is the Name of this proxy.
func New(cfg *config.Proxy, proxy string, members func() *instance.Snapshot) *Instances {
	f := &Instances{Proxy: proxy, Records: map[instance.Key]instance.Record{}, members: members, since: time.Now()}
	add := func(role instance.Role, address string, ports map[string][]int) {
		k := instance.Key{Role: role, Address: address}
		f.Keys = append(f.Keys, k)
		f.Records[k] = instance.Record{Source: schema.SourceFlags, Connector: cfg.Connector, Proxies: []string{proxy}, Ports: ports}
	}
	for _, a := range cfg.Prefill {
		add(instance.Prefill, a, nil)
	}
	for _, a := range cfg.Decode {
		add(instance.Decode, a, cfg.DecodePorts[a])
	}
	return f
}

// Ready returns nil once the instances have answered or flagGrace has passed.
func (f *Instances) Ready() error {
	if time.Since(f.since) >= flagGrace {
		return nil
	}
	snap := f.members()
	var missing []string
	for _, k := range f.Keys {
		if in, ok := snap.Lookup(k); !ok || !in.Verified {
			missing = append(missing, k.String())
		}
	}
	if len(missing) == 0 {
		return nil
	}
	slices.Sort(missing)
	return fmt.Errorf("instances of the command line have not answered yet: %s", strings.Join(missing, ", "))
}

// Fleet returns the names of the proxies that use an instance added through this proxy: itself, and the
// proxies whose command lines have all of its instances. It returns nil, which means every proxy, if
// the command line of this proxy has no instances.
func (f *Instances) Fleet() []string {
	if f.Proxy == "" {
		return nil
	}
	var all []string
	snap := f.members()
	for _, k := range f.Keys {
		in, ok := snap.Lookup(k)
		if !ok || len(in.Record.Proxies) == 0 || !in.Record.For(f.Proxy) {
			continue
		}
		if all == nil {
			all = slices.Clone(in.Record.Proxies)
			continue
		}
		all = slices.DeleteFunc(all, func(p string) bool { return !slices.Contains(in.Record.Proxies, p) })
	}
	all = slices.DeleteFunc(all, func(p string) bool { return instance.SameProxy(p, f.Proxy) })
	return append([]string{f.Proxy}, all...)
}

// Watch logs when an instance of the command line stops belonging to this proxy, and when it
// returns.
func (f *Instances) Watch(ctx context.Context, log logrus.FieldLogger) {
	if len(f.Keys) == 0 {
		return
	}
	had := make(map[instance.Key]bool, len(f.Keys))
	instance.Follow(ctx, f.members, func(_, snap *instance.Snapshot) {
		for _, k := range f.Keys {
			in, ok := snap.Lookup(k)
			has := ok && in.View != instance.Elsewhere && in.Intent != instance.Removed
			was, known := had[k]
			switch {
			case has && known && !was:
				log.Infof("%s of the command line is back", k)
			case was && !has && ok:
				log.Warnf("%s of the command line no longer belongs to this proxy: %s", k, in.Reason)
			case was && !has:
				log.Warnf("%s of the command line was removed from etcd", k)
			}
			if has || known {
				had[k] = has
			}
		}
	})
}

// Sync writes the instances of the command line to etcd. Without any it changes nothing, not
// even instances of an earlier command line.
func (f *Instances) Sync(ctx context.Context, to *store.Instances, log logrus.FieldLogger) error {
	if len(f.Records) == 0 {
		return nil
	}
	changes, err := to.SyncFlags(ctx, f.Proxy, f.Records)
	for _, k := range changes.Dropped { // also after an error: the next call does not find them
		log.Warnf("%s was on an earlier command line of this proxy but not on this one: removed", k)
	}
	if err != nil {
		return err
	}
	for _, k := range changes.Removed {
		log.Warnf("%s of the command line stays out, because it was removed: \"pdctl add %s %s\" or /instances/add brings it back", k.Address, k.Role, k.Address)
	}
	for _, k := range changes.Differ {
		log.Warnf("%s is on the command line of another proxy with another connector or other ports: those stay", k)
	}
	return nil
}
