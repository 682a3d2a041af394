package store

import (
	"bytes"
	"cmp"
	"context"
	"maps"
	"slices"
	"strings"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/pdmesh/pdmesh/internal/discovery/etcd"
	"github.com/pdmesh/pdmesh/internal/discovery/schema"
	"github.com/pdmesh/pdmesh/internal/discovery/watch"
	"github.com/pdmesh/pdmesh/internal/instance"
)

// This file writes static records that belong to some proxies only: those of command lines, and
// those added through a proxy that has a command line.

// maxProxies bounds the names in one record. Beyond it, the oldest are dropped: containers get new
// names, and no proxy removes the former ones.
const maxProxies = 32

// FlagsOutcome lists the instances that SyncFlags reports, each list sorted.
type FlagsOutcome struct {
	// Removed are on the command line, but are not added because an operator removed them.
	Removed []instance.Key
	// Dropped were on an earlier command line of this proxy and are not on this one.
	Dropped []instance.Key
	// Differ are on the command line of another proxy too, with another connector or other ports,
	// which stay in the record.
	Differ []instance.Key
}

// SyncFlags makes the static records that came from the command line of a proxy
// equal to want: missing ones are added, changed ones rewritten, those that are
// not wanted any more deleted. Records of the command lines of other proxies are not
// changed; an instance that several proxies name belongs to all of them. Records of any
// other source are not changed, except that the proxy may use them, and flags never lift
// a removal. If an instance cannot be changed, SyncFlags continues with the others and
// returns the first error.
func (s *Instances) SyncFlags(ctx context.Context, proxy string, want map[instance.Key]instance.Record) (FlagsOutcome, error) {
	var outcome FlagsOutcome
	for k, rec := range want {
		rec.Source, rec.Proxies = schema.SourceFlags, []string{proxy}
		if _, err := staticValue(k, rec, schema.SourceFlags); err != nil {
			return outcome, err
		}
	}
	got, err := etcd.List(ctx, etcd.CallTimeout, s.cli, s.layout, true)
	if err != nil {
		return outcome, err
	}
	var unwanted []instance.Key
	for _, kv := range got.KVs {
		n := s.layout.Parse(string(kv.Key))
		if n.Kind != schema.KindInstance {
			continue
		}
		k, aliased := watch.KeyOf(n, kv)
		if _, wanted := want[k]; wanted || aliased {
			continue
		}
		if rec, ok := fromFlags(kv, k); ok && rec.For(proxy) {
			unwanted = append(unwanted, k)
		}
	}
	order := func(a, b instance.Key) int { return strings.Compare(a.String(), b.String()) }
	slices.SortFunc(unwanted, order)
	// Wanted instances come first, so that the fleet is never smaller than the former or the present
	// command line.
	for _, k := range append(slices.SortedFunc(maps.Keys(want), order), unwanted...) {
		var wanted *instance.Record
		if rec, ok := want[k]; ok {
			wanted = &rec
		}
		err = cmp.Or(err, s.syncOne(ctx, proxy, k, wanted, &outcome))
	}
	return outcome, err
}

// fromFlags decodes a record, and reports whether it is static and came from a command line.
func fromFlags(kv *mvccpb.KeyValue, k instance.Key) (instance.Record, bool) {
	rec, _, err := schema.DecodeRecord(k, kv.Value)
	return rec, err == nil && kv.Lease == 0 && rec.Source == schema.SourceFlags
}

// syncOne updates one record; wanted is nil if the instance is not on the command line.
func (s *Instances) syncOne(ctx context.Context, proxy string, k instance.Key, wanted *instance.Record, outcome *FlagsOutcome) error {
	key := s.layout.Instance(k)
	var list *[]instance.Key // of outcome, nil: none
	put := func(f *etcd.Found, rec instance.Record) (plan, error) {
		value, err := staticValue(k, rec, schema.SourceFlags)
		if err != nil || f.Record != nil && bytes.Equal(f.Record.Value, value) {
			return plan{}, err
		}
		p := plan{what: "sync-flags", ops: []clientv3.Op{clientv3.OpPut(key, string(value))}}
		if f.Pending != nil {
			p.ops = append(p.ops, clientv3.OpDelete(s.layout.Pending(k)))
		}
		return p, nil
	}
	why := "given on the command line of "
	if wanted == nil {
		why = "no longer on the command line of "
	}
	err := s.change(ctx, k, why+proxy, func(f *etcd.Found) (plan, error) {
		list = nil
		rec, ours := instance.Record{}, false
		if f.Record != nil {
			rec, ours = fromFlags(f.Record, k)
		}
		others := without(rec.Proxies, proxy)
		switch {
		case wanted == nil && !ours:
			return plan{}, nil
		case wanted == nil && len(others) == 0:
			list = &outcome.Dropped
			return plan{what: "sync-flags", ops: []clientv3.Op{clientv3.OpDelete(key)}}, nil
		case wanted == nil:
			list = &outcome.Dropped
			rec.Proxies = others
			return put(f, rec)
		case f.Removed():
			list = &outcome.Removed
			return plan{}, nil
		case f.Record == nil, ours && len(others) == 0:
			rec = *wanted
			rec.Source, rec.Proxies = schema.SourceFlags, withWaiting(k, []string{proxy}, f.Pending)
			if len(rec.Proxies) != 1 {
				rec.Source = "admin" // the add of other proxies stays without the flag
			}
			return put(f, rec)
		case ours:
			if rec.Connector != wanted.Connector || !maps.EqualFunc(rec.Ports, wanted.Ports, slices.Equal[[]int]) {
				list = &outcome.Differ
			}
			if !rec.For(proxy) {
				rec.Proxies = named(rec.Proxies, proxy)
			}
			return put(f, rec)
		}
		wider, err := widened(k, f.Record, []string{proxy})
		if err != nil || wider == nil {
			return plan{}, err
		}
		return plan{what: "sync-flags", ops: []clientv3.Op{clientv3.OpPut(key, string(wider))}}, nil
	})
	if err == nil && list != nil {
		*list = append(*list, k)
	}
	return err
}

// without returns the names that refer to none of the proxies.
func without(names []string, proxies ...string) []string {
	return slices.DeleteFunc(slices.Clone(names), func(n string) bool {
		return slices.ContainsFunc(proxies, func(p string) bool { return instance.SameProxy(n, p) })
	})
}

// named returns the names with more added, each once; of more than maxProxies, the last ones.
func named(names []string, more ...string) []string {
	out := slices.Clone(names)
	for _, m := range more {
		if !slices.Contains(out, m) {
			out = append(out, m)
		}
	}
	return out[max(0, len(out)-maxProxies):]
}

// withWaiting returns the proxies of a record that replaces a pending add, which may be nil: those
// given and those of the add. None means all proxies.
func withWaiting(k instance.Key, proxies []string, pending *mvccpb.KeyValue) []string {
	if pending == nil || len(proxies) == 0 {
		return proxies
	}
	p, err := schema.DecodePending(k, pending.Value)
	if err != nil {
		return proxies
	}
	waiting := p.FullRecord(k).Proxies
	if len(waiting) == 0 {
		return nil
	}
	return named(waiting, proxies...)
}

// widened returns the value of a static record that is extended to more proxies, to all if proxies
// is empty; nil if it needs no change.
func widened(k instance.Key, kv *mvccpb.KeyValue, proxies []string) ([]byte, error) {
	if kv == nil || kv.Lease != 0 {
		return nil, nil
	}
	rec, _, err := schema.DecodeRecord(k, kv.Value)
	if err != nil || len(rec.Proxies) == 0 {
		return nil, nil //nolint:nilerr // what cannot be read is left alone
	}
	if len(proxies) == 0 {
		rec.Proxies, rec.Source = nil, "admin"
		return staticValue(k, rec, "admin")
	}
	wider := named(rec.Proxies, proxies...)
	if slices.Equal(wider, rec.Proxies) {
		return nil, nil
	}
	rec.Proxies = wider
	return staticValue(k, rec, rec.Source)
}

// Leave removes proxies from the record of an instance, or from its pending add, if other proxies
// use it, too. kept reports whether others use it; left reports whether these did, and were
// removed. Without kept, nothing is written, and the instance may be removed.
func (s *Instances) Leave(ctx context.Context, k instance.Key, proxies []string, reason string) (left, kept bool, err error) {
	if err := CheckKey(k); err != nil {
		return false, false, err
	}
	err = s.change(ctx, k, reason, func(f *etcd.Found) (plan, error) {
		p := plan{what: "leave"}
		left, kept = false, false
		switch {
		case f.Record != nil && f.Record.Lease == 0:
			rec, _, err := schema.DecodeRecord(k, f.Record.Value)
			if err != nil {
				return plan{}, nil //nolint:nilerr // a removal deals with what cannot be read
			}
			if left, kept = leave(&rec, proxies); !left {
				return plan{}, nil
			}
			value, err := staticValue(k, rec, rec.Source)
			p.ops = []clientv3.Op{clientv3.OpPut(s.layout.Instance(k), string(value))}
			return p, err
		case f.Record == nil && f.Pending != nil:
			add, err := schema.DecodePending(k, f.Pending.Value)
			if err != nil || add.Record == nil {
				return plan{}, nil //nolint:nilerr // as above
			}
			if left, kept = leave(add.Record, proxies); !left {
				return plan{}, nil
			}
			value, err := pendingValue(k, add)
			p.ops = []clientv3.Op{clientv3.OpPut(s.layout.Pending(k), string(value), clientv3.WithIgnoreLease())}
			return p, err
		}
		return plan{}, nil
	})
	return left && err == nil, kept && err == nil, err
}

// leave removes proxies from a record that others use, too. It reports whether the record had some
// of them, and whether others use it.
func leave(rec *instance.Record, proxies []string) (left, kept bool) {
	others := without(rec.Proxies, proxies...)
	kept = len(others) > 0
	if left = kept && len(others) < len(rec.Proxies); left {
		rec.Proxies = others
	}
	return left, kept
}
