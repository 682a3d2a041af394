package proxy

import (
	"context"
	"fmt"
	"net/http"
	"slices"

	"github.com/sirupsen/logrus"

	"github.com/pdmesh/pdmesh/internal/discovery/schema"
	"github.com/pdmesh/pdmesh/internal/forward"
	"github.com/pdmesh/pdmesh/internal/httpapi"
	"github.com/pdmesh/pdmesh/internal/httpapi/apikeys"
	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/internal/proxy/config"
	"github.com/pdmesh/pdmesh/internal/sched/admission"
)

// openKeys reads the clients' keys and the admin keys. A nil ring means that clients need no key, a nil
// admin that there are no admin keys.
func openKeys(cfg *config.Proxy, log *logrus.Logger) (ring, admin *apikeys.Ring, err error) {
	isClient := func(key string) bool {
		_, ok := ring.Find(key)
		return ok || slices.Contains(cfg.APIKeys, key)
	}
	isAdmin := func(key string) bool { _, ok := admin.Find(key); return ok }
	if admin, err = apikeys.OpenAdmin(cfg.AdminAPIKey, cfg.AdminAPIKeysFile, log.WithField("component", "keys"), isClient); err != nil {
		return nil, nil, fmt.Errorf("admin keys (--admin-api-keys-file): %w", err)
	}
	ring, err = apikeys.Open(cfg.APIKeys, cfg.APIKeysFile, log.WithField("component", "keys"), isAdmin)
	if err != nil {
		return nil, nil, fmt.Errorf("keys of clients (--api-keys-file): %w", err)
	}
	return ring, admin, nil
}

// allow sets the permissions of admin keys and of client keys with rights.
func allow(ring, admins *apikeys.Ring, o *forward.Options) {
	admin := httpapi.HoldsAdminKey(admins)
	may := func(right apikeys.Rights) func(*http.Request) bool {
		return func(r *http.Request) bool { return admin(r) || ring.Of(r).Rights.Has(right) }
	}
	o.Trace, o.Privileged, o.Ranked = may(apikeys.Trace), may(apikeys.Priority), may(apikeys.Rank)
	o.KeyName = func(r *http.Request) string { return ring.Of(r).Name }
	o.ClientKeys = ring != nil
	if ring != nil { // without keys every client may choose
		o.Class = func(r *http.Request) (is, highest admission.Class) {
			k := ring.Of(r)
			is, _ = admission.ParseClass(k.Class)
			highest, _ = admission.ParseClass(k.MaxClass)
			return is, highest
		}
	}
}

// keyFindings returns the problems with the files of API keys.
func (p *app) keyFindings() []string {
	var found []string
	for _, ring := range []*apikeys.Ring{p.keys, p.admins} {
		if why := ring.Problem(); why != "" {
			found = append(found, "the new file of API keys cannot be used; the previous keys stay active: "+why)
		}
	}
	return found
}

// followLimits applies the limits of API keys from etcd. While a document is invalid or from a newer
// release, its key keeps the previous limits.
func (p *app) followLimits(ctx context.Context) {
	limits := map[string]instance.KeyLimits{}
	instance.Follow(ctx, p.watcher.Snapshot, func(last, snap *instance.Snapshot) {
		if last != nil && last.Documents == snap.Documents {
			return
		}
		next := map[string]instance.KeyLimits{}
		for _, d := range snap.Documents.In(schema.Limits) {
			l, err := instance.DecodeKeyLimits(d.Value)
			if err != nil {
				p.log.WithError(err).WithField("key", instance.Printable(d.Address, 64)).Warn("limits of an API key ignored")
				if l = limits[d.Address]; l.V == 0 {
					continue
				}
			}
			next[d.Address] = l
		}
		limits = next
		p.limits.Set(limits)
	})
}
