package admin

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/pdmesh/pdmesh/internal/discovery/schema"
	"github.com/pdmesh/pdmesh/internal/discovery/store"
	"github.com/pdmesh/pdmesh/internal/httpapi"
	"github.com/pdmesh/pdmesh/internal/instance"
)

// SetModelRoute writes a model route. It returns when the proxy's own snapshot contains it.
func (s *Service) SetModelRoute(ctx context.Context, name string, raw []byte, d time.Duration) (int64, error) {
	r, err := schema.DecodeModelRoute(raw)
	if err != nil {
		return 0, fmt.Errorf("%w: %w", httpapi.ErrRefused, err)
	}
	if why := r.Conflict(name, s.o.Members.Snapshot().All()); why != "" {
		return 0, fmt.Errorf("%w: %s", httpapi.ErrRefused, why)
	}
	r.V = 1
	value, err := schema.Encode(r)
	if err != nil {
		return 0, fmt.Errorf("%w: %w", httpapi.ErrRefused, err)
	}
	k := instance.Key{Role: schema.Models, Address: name}
	return s.documentChanged(ctx)(s.o.Documents.Put(ctx, k, value, store.DocumentOptions{Reason: r.Reason, For: d}))
}

// DeleteModelRoute deletes a model route.
func (s *Service) DeleteModelRoute(ctx context.Context, name, reason string) (int64, error) {
	return s.documentChanged(ctx)(s.o.Documents.Delete(ctx, instance.Key{Role: schema.Models, Address: name}, reason))
}

// documentChanged returns a function that waits until the proxy's own snapshot contains a change.
func (s *Service) documentChanged(ctx context.Context) func(revision int64, err error) (int64, error) {
	return func(revision int64, err error) (int64, error) {
		var rejected *schema.RejectedError
		switch {
		case errors.As(err, &rejected):
			return 0, fmt.Errorf("%w: %w", httpapi.ErrRefused, err)
		case err != nil:
			return 0, storeError(err)
		}
		s.await(ctx, func(snap *instance.Snapshot) bool { return snap.Revision >= revision })
		return revision, nil
	}
}
