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
	shown := true // in all roles: force would also change a role that the engine does not have
	for _, one := range k.Each() {
		in, ok := s.Members.Snapshot().Lookup(one)
		if ok && in.View == instance.Elsewhere {
			return httpapi.IntentResult{}, nil
		}
		shown = shown && ok
	}
	// An orphan, which has lost its key, still serves.
	how := store.IntentOptions{Reason: change.Reason, For: change.For, Force: shown}
	if change.Verb == httpapi.SetRole {
		how.Force, how.Auto, how.Fits = change.Force, change.Auto, s.Fits
	}
	done, err := s.Store.Intents.Change(ctx, k, string(change.Verb), change.Weight, how)
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
