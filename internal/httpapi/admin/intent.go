package admin

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"github.com/pdmesh/pdmesh/internal/discovery/store"
	"github.com/pdmesh/pdmesh/internal/httpapi"
	"github.com/pdmesh/pdmesh/internal/instance"
)

// ChangeIntent implements httpapi.Admin.
func (s *Service) ChangeIntent(ctx context.Context, k instance.Key, change httpapi.IntentChange) (httpapi.IntentResult, error) {
	ctx = named(ctx)
	shown := true // in all roles: force would change one that the engine does not have
	for _, one := range k.Each() {
		in, ok := s.o.Members.Snapshot().Lookup(one)
		if ok && in.View == instance.Elsewhere {
			return httpapi.IntentResult{}, nil
		}
		shown = shown && ok
	}
	// An orphan, which has lost its key, still serves.
	done, err := s.carry(ctx, k, change, store.IntentOptions{Reason: change.Reason, For: change.For, Force: shown})
	switch {
	case errors.Is(err, store.ErrIntent):
		return httpapi.IntentResult{}, fmt.Errorf("%w: %w", httpapi.ErrRefused, err)
	case err != nil:
		return httpapi.IntentResult{}, storeError(err)
	}
	if !done.Known && !shown {
		return httpapi.IntentResult{}, nil
	}
	if !done.Known && change.Verb == httpapi.SetRole && k.Role != instance.Both {
		return httpapi.IntentResult{}, fmt.Errorf("%w: %s has no key in etcd (orphan), so its role cannot be set", httpapi.ErrRefused, k.Address)
	}
	s.await(ctx, func(snap *instance.Snapshot) bool { return snap.Revision >= done.Revision })
	return httpapi.IntentResult{Known: true, Revision: cmp.Or(done.Revision, done.Read)}, nil
}

func (s *Service) carry(ctx context.Context, k instance.Key, change httpapi.IntentChange, how store.IntentOptions) (store.IntentResult, error) {
	switch change.Verb {
	case httpapi.Drain, httpapi.Cordon:
		return s.o.Store.Intents.Intend(ctx, k, instance.Intent(change.Verb), how)
	case httpapi.Undrain:
		return s.o.Store.Intents.Lift(ctx, k, instance.Drain, change.Reason)
	case httpapi.Uncordon:
		return s.o.Store.Intents.Lift(ctx, k, instance.Cordon, change.Reason)
	case httpapi.SetWeight:
		return s.o.Store.Intents.SetWeight(ctx, k, change.Weight, how)
	case httpapi.SetRole:
		return s.o.Store.Intents.SetRole(ctx, k.Address, k.Role, store.RoleOptions{
			Reason: change.Reason, For: change.For, Auto: change.Auto, Force: change.Force, Fits: s.o.Fits,
		})
	}
	return store.IntentResult{}, fmt.Errorf("%w: %q is none of the verbs", store.ErrIntent, change.Verb)
}
