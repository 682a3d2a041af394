package admin

import (
	"context"
	"errors"
	"fmt"

	"github.com/pdmesh/pdmesh/internal/discovery/store"
	"github.com/pdmesh/pdmesh/internal/httpapi"
	"github.com/pdmesh/pdmesh/internal/instance"
)

// Intend implements httpapi.Admin.
func (s *Service) Intend(ctx context.Context, k instance.Key, w httpapi.Wish) (httpapi.Wished, error) {
	shown := false
	for _, one := range k.Each() {
		in, ok := s.o.Members.Snapshot().Lookup(one)
		if ok && in.View == instance.Elsewhere {
			return httpapi.Wished{}, nil
		}
		shown = shown || ok
	}
	// One that has lost its key, an orphan, serves all the same.
	done, err := s.carry(ctx, k, w, store.IntentOptions{Reason: w.Reason, For: w.For, Force: shown})
	switch {
	case errors.Is(err, store.ErrIntent):
		return httpapi.Wished{}, fmt.Errorf("%w: %w", httpapi.ErrRefused, err)
	case err != nil:
		return httpapi.Wished{}, storeError(err)
	}
	if !done.Known && !shown {
		return httpapi.Wished{}, nil
	}
	s.await(ctx, func(snap *instance.Snapshot) bool { return snap.Revision >= done.Revision })
	return httpapi.Wished{Known: true, Revision: done.Revision}, nil
}

func (s *Service) carry(ctx context.Context, k instance.Key, w httpapi.Wish, how store.IntentOptions) (store.IntentResult, error) {
	switch w.Verb {
	case httpapi.Drain:
		return s.o.Intents.Intend(ctx, k, instance.Drain, how)
	case httpapi.Cordon:
		return s.o.Intents.Intend(ctx, k, instance.Cordon, how)
	case httpapi.Undrain:
		return s.o.Intents.Lift(ctx, k, instance.Drain, w.Reason)
	case httpapi.Uncordon:
		return s.o.Intents.Lift(ctx, k, instance.Cordon, w.Reason)
	case httpapi.Weigh:
		return s.o.Intents.SetWeight(ctx, k, w.Weight, how)
	}
	return store.IntentResult{}, fmt.Errorf("%w: %q is none of the verbs", store.ErrIntent, w.Verb)
}
