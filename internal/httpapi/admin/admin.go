// Package admin implements the proxy's admin routes: it verifies an instance and
// writes the change to etcd, where every proxy reads it. It keeps no state in
// memory.
package admin

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/pdmesh/pdmesh/internal/discovery/schema"
	"github.com/pdmesh/pdmesh/internal/discovery/store"
	"github.com/pdmesh/pdmesh/internal/discovery/verify"
	"github.com/pdmesh/pdmesh/internal/discovery/watch"
	"github.com/pdmesh/pdmesh/internal/engine/vllm"
	"github.com/pdmesh/pdmesh/internal/httpapi"
	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/internal/transport/netguard"
)

// Service implements httpapi.Admin. All fields except Fits, Model and PendingTTL must be set.
type Service struct {
	Store   *store.Store
	Members instance.Source // as seen by this proxy
	Prober  watch.Prober
	Guard   netguard.Policy
	// Fits returns why an engine can't serve in the role of its key; nil: no check.
	Fits  func(instance.Key, instance.Record) error
	Model string // every instance must serve it; "" any
	// Proxies are the proxies that use the instances added through this proxy; empty
	// means every proxy.
	Proxies func() []string
	// PendingTTL is the maximum time that an add waits for its instance; 0 means no limit.
	PendingTTL time.Duration
}

// probeTimeout bounds the probe of an instance.
const probeTimeout = 3 * time.Second

// seenTimeout bounds the wait until the proxy's own snapshot contains a change. It
// expires only if the watch lags; the change itself is then already in etcd.
const seenTimeout = 5 * time.Second

// named attributes changes to the name of the admin key of the request, if it has one.
func named(ctx context.Context) context.Context {
	if name := httpapi.KeyName(ctx); name != "" {
		return store.WithActor(ctx, name)
	}
	return ctx
}

// Add verifies the instance and makes it a static member with the given number of
// data-parallel ranks; 0 means the number that it reports. If the instance does not respond,
// it becomes a pending add, which any proxy promotes once it responds.
func (s *Service) Add(ctx context.Context, k instance.Key, ranks int) (httpapi.Outcome, error) {
	ctx = named(ctx)
	if ap, err := netip.ParseAddrPort(k.Address); err == nil {
		if err := s.Guard.Check(ap.Addr()); err != nil {
			return 0, fmt.Errorf("%w: Invalid instance address. %w", httpapi.ErrRefused, err)
		}
	}
	pctx, cancel := context.WithTimeout(ctx, probeTimeout)
	facts, err := s.Prober.Probe(pctx, &instance.Instance{Key: k, Record: instance.Record{Scheme: "http", Address: k.Address}})
	cancel()
	switch {
	case errors.Is(err, netguard.ErrForbidden), errors.Is(err, vllm.ErrProxy): // it will never become an instance
		return 0, fmt.Errorf("%w: Invalid instance address. %w", httpapi.ErrRefused, err)
	case ctx.Err() != nil:
		return 0, ctx.Err()
	case err != nil:
		return s.wait(ctx, k, ranks, err)
	case !facts.Serves(s.Model, false):
		return 0, fmt.Errorf("%w: Instance validation failed. Instance %s serves %q, this proxy serves %q", httpapi.ErrRefused,
			k.Address, facts.Models, s.Model)
	}
	facts.DPSize = ranks // 0 lets the proxies detect the number
	rec := verify.WithFacts(instance.Record{Source: "admin", Proxies: s.Proxies(), DPSize: ranks}, facts)
	if k.Role == instance.Both {
		rec.KVRole = "kv_both"
	}
	outcome, err := s.Store.Instances.Add(ctx, k, rec, "added through the admin route")
	if err != nil {
		return 0, storeError(err)
	}
	s.await(ctx, func(snap *instance.Snapshot) bool { return member(snap, k) })
	if outcome == store.AlreadyThere {
		return httpapi.Already, nil
	}
	return httpapi.Added, nil
}

// member reports whether an instance is a member in all roles of a key.
func member(snap *instance.Snapshot, k instance.Key) bool {
	for _, one := range k.Each() {
		in, ok := snap.Lookup(one)
		if !ok || in.Intent == instance.Removed || in.View == instance.Elsewhere {
			return false
		}
	}
	return true
}

// wait stores a pending add for an instance that does not respond, unless etcd has its record: a member
// that does not respond is still a member. etcd decides this, because the snapshot may lag.
func (s *Service) wait(ctx context.Context, k instance.Key, ranks int, why error) (httpapi.Outcome, error) {
	p := schema.PendingAdd{V: 1, Model: s.Model, Reason: instance.Printable(why.Error(), 300)}
	if proxies := s.Proxies(); len(proxies) > 0 || ranks > 0 {
		p.Record = &instance.Record{Proxies: proxies, DPSize: ranks}
	}
	outcome, err := s.Store.Instances.AddPending(ctx, k, p, s.PendingTTL, "waits for the instance, through the admin route")
	if err != nil {
		return 0, storeError(err)
	}
	if outcome == store.AlreadyThere {
		return httpapi.Already, nil
	}
	s.await(ctx, func(snap *instance.Snapshot) bool {
		for _, one := range k.Each() {
			in, ok := snap.Lookup(one) // it may have started meanwhile
			if !snap.Waiting(one) && (!ok || in.Intent == instance.Removed) {
				return false
			}
		}
		return true
	})
	return httpapi.Waiting, nil
}

// Remove deletes the record and any pending add, and writes the intent "removed", so that an agent
// cannot register the instance again. A record or pending add that other proxies share stays for them;
// one that is only for other proxies counts as unknown. etcd decides this, because the snapshot may lag.
// Both roles of an engine are removed in one transaction, unless other proxies use one of them.
func (s *Service) Remove(ctx context.Context, k instance.Key) (existed bool, err error) {
	ctx = named(ctx)
	proxies := s.Proxies()
	if len(proxies) == 0 {
		return s.erase(ctx, k)
	}
	var unshared []instance.Key // used by no other proxy
	for _, one := range k.Each() {
		left, kept, err := s.Store.Instances.Leave(ctx, one, proxies, "removed through the admin route of "+proxies[0])
		switch {
		case errors.Is(err, instance.ErrAddress): // a misspelled key
			unshared = append(unshared, one)
		case err != nil:
			return existed, storeError(err)
		case left:
			existed = true
			s.await(ctx, func(snap *instance.Snapshot) bool {
				in, ok := snap.Lookup(one)
				add, waits := snap.Pending(one)
				return (!ok || !in.Usable()) && (!waits || s.elsewhere(add))
			})
		case !kept:
			unshared = append(unshared, one)
		}
	}
	if len(unshared) == len(k.Each()) {
		return s.erase(ctx, k)
	}
	for _, one := range unshared {
		ok, err := s.erase(ctx, one)
		if err != nil {
			return existed, err
		}
		existed = existed || ok
	}
	return existed, nil
}

// erase is Remove for records that no other proxy uses.
func (s *Service) erase(ctx context.Context, k instance.Key) (bool, error) {
	const detail = "removed through the admin route"
	snap, shown := s.Members.Snapshot(), true // in all roles: force would also remove a role that the engine does not have
	for _, one := range k.Each() {
		in, ok := snap.Lookup(one)
		shown = shown && ok && in.Intent != instance.Removed && !s.elsewhere(in)
	}
	remove := s.Store.Instances.Remove
	if shown {
		remove = s.Store.Instances.ForceRemove // the instance may be an orphan without a key
	}
	existed, err := remove(ctx, k, detail)
	if errors.Is(err, instance.ErrAddress) && shown { // a misspelled key
		existed, err = s.Store.Instances.Remove(ctx, k, detail)
	}
	switch {
	case errors.Is(err, store.ErrIntent):
		return false, fmt.Errorf("%w: %w", httpapi.ErrRefused, err)
	case err != nil:
		return false, storeError(err)
	}
	if existed = existed || shown; existed {
		s.await(ctx, func(snap *instance.Snapshot) bool {
			for _, one := range k.Each() {
				if in, ok := snap.Lookup(one); ok && in.Usable() || snap.Waiting(one) {
					return false
				}
			}
			return true
		})
	}
	return existed, nil
}

// elsewhere reports whether only other proxies use an instance, or wait for it.
func (s *Service) elsewhere(in *instance.Instance) bool {
	proxies := s.Proxies()
	return in.View == instance.Elsewhere || in.View == instance.Pending && len(proxies) > 0 && !in.Record.For(proxies[0])
}

// await blocks until the watch has delivered the written change, at most seenTimeout, so
// that the response lists the membership with the change.
func (s *Service) await(ctx context.Context, shown func(*instance.Snapshot) bool) {
	ctx, cancel := context.WithTimeout(ctx, seenTimeout)
	defer cancel()
	instance.Await(ctx, s.Members.Snapshot, shown)
}

func storeError(err error) error {
	return fmt.Errorf("%w: %w", httpapi.ErrUnavailable, err)
}
