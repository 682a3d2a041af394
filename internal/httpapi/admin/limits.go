package admin

import (
	"context"
	"encoding/json"

	"github.com/pdmesh/pdmesh/internal/discovery/schema"
	"github.com/pdmesh/pdmesh/internal/discovery/store"
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
