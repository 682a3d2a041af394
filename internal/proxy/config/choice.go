package config

import (
	"cmp"
	"strconv"
	"strings"
	"time"

	"github.com/pdmesh/pdmesh/internal/cli/settings"
	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/internal/sched/policy"
)

// The values of Choice.Disaggregate.
const (
	// DisaggregateAlways sends every request that can use them through prefill and decode.
	DisaggregateAlways = "always"
	// DisaggregateAuto sends a request to decode only where that is faster.
	DisaggregateAuto = "auto"
	// DisaggregateNever sends all requests to decode only, for comparison.
	DisaggregateNever = "never"
)

// Choice has the settings of scheduling.
type Choice struct {
	Disaggregate string // DisaggregateAlways, DisaggregateAuto or DisaggregateNever

	// Policy is the scheduling policy of both roles; see package policy. "" leaves the default
	// of each role.
	Policy string
	// PrefillPolicy and DecodePolicy are those of one role; LoadProxy sets them to Policy if
	// they are empty.
	PrefillPolicy, DecodePolicy string
	// CacheWeight is the number of waiting tokens that count as much as one cached token.
	CacheWeight int
	IndexMemory int64 // bytes of the indexes of prompts and KV blocks together

	// ClientBound sends requests of the same session to the same instances while those can serve.
	ClientBound bool
	// ClientBoundKey is the header that names the session; "" uses the identifiers of known
	// clients.
	ClientBoundKey string

	// Zone is the zone of this proxy; instances with the same label zone are preferred.
	Zone string

	KVEvents       bool          // whether KV events of engines are followed
	LoadDigests    bool          // whether proxies publish their load
	LoadInterval   time.Duration // minimum between two digests of one proxy
	ScrapeInterval time.Duration // between two reads of an engine's metrics; 0 = none
}

func (ch *Choice) settings() settings.Table {
	return settings.About("Scheduling",
		settings.Setting{Name: "disaggregate", Kind: settings.Text, Takes: DisaggregateAlways + ", " + DisaggregateAuto + " or " + DisaggregateNever, Default: DisaggregateAlways, Usage: "which requests use both prefill and decode: always (all that can), auto (not those that are served better decode-only, as estimated from earlier requests) or never (for comparison)", Into: &ch.Disaggregate},
		settings.Setting{Name: "policy", Kind: settings.Text, Usage: "how an instance is chosen, for both roles: " + strings.Join(policy.Names(), ", "), Into: &ch.Policy},
		settings.Setting{Name: "prefill-policy", Kind: settings.Text, Usage: "policy for prefill instances (default: that of --policy, or " + policy.DefaultPrefill + ")", Into: &ch.PrefillPolicy},
		settings.Setting{Name: "decode-policy", Kind: settings.Text, Usage: "policy for decode instances, where " + policy.KVAware + " is the same as " + policy.DefaultPrefill + " (default: that of --policy, or " + policy.Default + ")", Into: &ch.DecodePolicy},
		settings.Setting{Name: "cache-weight", Kind: settings.Number, Default: strconv.Itoa(policy.DefaultCacheWeight), Rare: true, Usage: "for policies that know caches: this many tokens that wait for an instance count as much as one token that is not in its cache", Into: &ch.CacheWeight},
		settings.Setting{Name: "index-memory", Kind: settings.Bytes, Takes: "1MiB to 1TiB", Default: "512MiB", Rare: true, Usage: "limit for the memory of the indexes of prompts (all roles and models) and of KV blocks together; each kind is sure of half, and the least recently used prompts are evicted; 1MiB to 1TiB", Into: &ch.IndexMemory},
		settings.Setting{Name: "client-bound", Kind: settings.OnOff, Default: "off", Env: []string{"CLIENT_BOUND"}, Usage: "send requests of one session to the same instances, with any policy; also CLIENT_BOUND", Into: &ch.ClientBound},
		settings.Setting{Name: "client-bound-key", Kind: settings.Text, Env: []string{"CLIENT_BOUND_KEY"}, Rare: true, Usage: "header that names the session, for --client-bound and policies that use sessions (default: session-id and other identifiers of known clients, see docs/picking.md); also CLIENT_BOUND_KEY", Into: &ch.ClientBoundKey},
		settings.Setting{Name: "zone", Kind: settings.Text, Usage: "zone of this proxy, which prefers instances with the same label zone; without it, decode instances in the zone of the prefill instance are preferred", Into: &ch.Zone},
		settings.Setting{Name: "kv-events", Kind: settings.OnOff, Default: "off", Usage: "follow the KV events that engines publish (--kv-events-config); the policy " + policy.KVAware + " always does for prefill", Into: &ch.KVEvents},
		settings.Setting{Name: "load-digests", Kind: settings.OnOff, Default: "on", Rare: true, Usage: "publish the load of this proxy in etcd for the other proxies, and use their load", Into: &ch.LoadDigests},
		// At most loaddigest.Refresh: other proxies reduce the weight of an older digest, and a drain
		// waits for the next one.
		settings.Setting{Name: "load-interval", Kind: settings.Time, Takes: "20ms to 3s", Default: "1s", Rare: true, Usage: "shortest time between two such digests of one proxy; each is a write to etcd", Into: &ch.LoadInterval},
		settings.Setting{Name: "scrape-interval", Kind: settings.Time, Takes: "100ms to 1h, or 0s for none", Default: "5s", Rare: true, Usage: "how often the metrics of each engine are read, for KV cache use, waiting requests and progress; 0s means never, and that hung cores are not detected", Into: &ch.ScrapeInterval},
	)
}

// complete sets the policy of each role.
func (ch *Choice) complete() {
	ch.PrefillPolicy = cmp.Or(ch.PrefillPolicy, ch.Policy, policy.DefaultPrefill)
	ch.DecodePolicy = cmp.Or(ch.DecodePolicy, ch.Policy, policy.Default)
}

func (ch *Choice) check(c *complaints) {
	ch.checkPolicies(c)
	if ch.ClientBoundKey != "" && !isToken(ch.ClientBoundKey) {
		c.bad("client-bound-key", "invalid header name %q: use letters, digits and dashes", instance.Printable(ch.ClientBoundKey, 80))
	}
	if ch.Zone != instance.Printable(ch.Zone, 0) || len(ch.Zone) > 128 || strings.TrimSpace(ch.Zone) != ch.Zone {
		c.bad("zone", "invalid zone %q: use up to 128 bytes, without surrounding spaces", instance.Printable(ch.Zone, 80))
	}
}

func (ch *Choice) checkPolicies(c *complaints) {
	check := func(setting, name string) {
		if _, err := policy.Find(name); err != nil {
			c.bad(setting, "%q: %w", instance.Printable(name, 80), err)
		}
	}
	if ch.Policy != "" {
		check("policy", ch.Policy)
	}
	if ch.PrefillPolicy != ch.Policy {
		check("prefill-policy", ch.PrefillPolicy)
	}
	if ch.DecodePolicy != ch.Policy {
		check("decode-policy", ch.DecodePolicy)
	}
	if ch.CacheWeight < 1 {
		c.bad("cache-weight", "must be 1 or more")
	}
}
