package admin

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/pdmesh/pdmesh/internal/discovery/schema"
	"github.com/pdmesh/pdmesh/internal/discovery/store"
	"github.com/pdmesh/pdmesh/internal/httpapi"
	"github.com/pdmesh/pdmesh/internal/instance"
)

// Limits implements httpapi.Admin. It omits documents that cannot be read.
func (s *Service) Limits(ctx context.Context) (map[string]instance.KeyLimits, error) {
	list, err := s.Store.Documents.List(ctx, schema.Limits)
	if err != nil {
		return nil, storeError(err)
	}
	all := map[string]instance.KeyLimits{}
	for _, d := range list {
		if l, err := instance.DecodeKeyLimits(d.Value); err == nil {
			all[d.Address] = l
		}
	}
	return all, nil
}

// SetLimits implements httpapi.Admin.
func (s *Service) SetLimits(ctx context.Context, key string, l instance.KeyLimits, reason string) error {
	ctx = named(ctx)
	value, _ := json.Marshal(l) // integers have no error
	revision, err := s.Store.Documents.Put(ctx, instance.Key{Role: schema.Limits, Address: key}, value, store.DocumentOptions{Reason: reason})
	return s.documentChanged(ctx, revision, err)
}

// RemoveLimits implements httpapi.Admin.
func (s *Service) RemoveLimits(ctx context.Context, key string) (bool, error) {
	ctx = named(ctx)
	revision, err := s.Store.Documents.Delete(ctx, instance.Key{Role: schema.Limits, Address: key}, "")
	return revision > 0, s.documentChanged(ctx, revision, err)
}

// SetModelRoute writes a model route. It returns when the proxy's own snapshot contains it.
func (s *Service) SetModelRoute(ctx context.Context, name string, raw []byte, d time.Duration) (int64, error) {
	if err := instance.DecodeStrict(raw, &struct {
		instance.ListedModelRoute // so that the answer to a GET can be edited and sent

		V   int    `json:"v"`
		For string `json:"for"` // the caller has parsed it into d
	}{}); err != nil {
		return 0, fmt.Errorf("%w: %s", httpapi.ErrRefused, instance.JSONError(err))
	}
	r, err := schema.DecodeModelRoute(raw)
	if err != nil {
		return 0, fmt.Errorf("%w: %w", httpapi.ErrRefused, err)
	}
	if why := r.Conflict(name, s.Members.Snapshot().All()); why != "" {
		return 0, fmt.Errorf("%w: %s", httpapi.ErrRefused, why)
	}
	r.V = 1
	value, err := schema.Encode(r)
	if err != nil {
		return 0, fmt.Errorf("%w: %w", httpapi.ErrRefused, err)
	}
	revision, err := s.Store.Documents.Put(named(ctx), instance.Key{Role: schema.Models, Address: name}, value, store.DocumentOptions{Reason: r.Reason, For: d})
	return revision, s.documentChanged(ctx, revision, err)
}

// DeleteModelRoute deletes a model route.
func (s *Service) DeleteModelRoute(ctx context.Context, name, reason string) (int64, error) {
	revision, err := s.Store.Documents.Delete(named(ctx), instance.Key{Role: schema.Models, Address: name}, reason)
	return revision, s.documentChanged(ctx, revision, err)
}

// documentChanged waits until the proxy's own snapshot contains a change.
func (s *Service) documentChanged(ctx context.Context, revision int64, err error) error {
	_, rejected := errors.AsType[*schema.RejectedError](err)
	switch {
	case rejected, errors.Is(err, store.ErrIntent):
		return fmt.Errorf("%w: %w", httpapi.ErrRefused, err)
	case err != nil:
		return storeError(err)
	}
	s.await(ctx, func(snap *instance.Snapshot) bool { return snap.Revision >= revision })
	return nil
}
