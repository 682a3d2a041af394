package config

import (
	"path/filepath"
	"strconv"
	"time"

	"github.com/pdmesh/pdmesh/internal/cli/settings"
)

// Membership has the settings of the membership.
type Membership struct {
	StateDir      string        // where the membership is saved; "" = nowhere
	AuditInterval time.Duration // between two comparisons of all keys with etcd
	OrphanGrace   time.Duration // for instances whose lease was lost, while most are registered

	WaitingRetryInterval time.Duration // between two probes of a pending add
	MaxWaitingRetries    int           // 0 = no limit
}

func (m *Membership) settings() settings.Table {
	return settings.About("Membership",
		settings.Setting{Name: "state-dir", Kind: settings.Text, Usage: "directory where the membership and the members of etcd are saved, for a start while etcd is unavailable; empty saves nothing (default: pdmesh/proxy-<port> in the user's state directory)", Into: &m.StateDir},
		settings.Setting{Name: "audit-interval", Kind: settings.Time, Takes: anyTime, Default: "15s", Rare: true, Usage: "how often all keys in etcd are compared with what the watch has delivered", Into: &m.AuditInterval},
		settings.Setting{Name: "orphan-grace", Kind: settings.Time, Takes: anyTime, Default: "1m", Rare: true, Usage: "how long an instance without a lease is used, if it answers and most of its role are registered", Into: &m.OrphanGrace},
		settings.Setting{Name: "waiting-retry-interval", Kind: settings.Time, Takes: anyTime, Default: "2s", Rare: true, Usage: "time between two probes of an instance that was added before it was up", Into: &m.WaitingRetryInterval},
		settings.Setting{Name: "max-waiting-retries", Kind: settings.Number, Default: "0", Rare: true, Usage: "number of probes after which such an instance is given up; 0 means never", Into: &m.MaxWaitingRetries},
	)
}

// complete sets the default of StateDir, which depends on the port. StateDir is optional: it stays empty
// for a user without a home directory, and with port 0, because two such proxies would share it.
func (m *Membership) complete(c *complaints, port int, lookupEnv func(string) (string, bool)) {
	if c.sources["state-dir"] != "" || port == 0 {
		return
	}
	if dir, err := stateDir(lookupEnv); err == nil {
		m.StateDir = filepath.Join(dir, "proxy-"+strconv.Itoa(port))
	}
}

func (m *Membership) check(c *complaints) {
	if m.MaxWaitingRetries < 0 {
		c.bad("max-waiting-retries", "%d is negative; use 0 for ever", m.MaxWaitingRetries)
	}
}

// Health has the settings of outlier ejection and probes.
type Health struct {
	MaxFailures  int           // strikes in a row until an ejection
	EjectionTime time.Duration // of the first ejection
	SlowStart    time.Duration // until the full share of requests after an ejection
	SilenceLimit time.Duration // without data from an instance while others of its role send
	ProbeTimeout time.Duration
}

func (h *Health) settings() settings.Table {
	return settings.About("Health checks",
		settings.Setting{Name: "max-failures", Kind: settings.Number, Takes: "1 to 1000", Default: "3", Usage: "number of failures in a row that eject an instance; only requests count that another instance then served", Into: &h.MaxFailures},
		settings.Setting{Name: "ejection-time", Kind: settings.Time, Takes: anyTime, Default: "1s", Usage: "length of the first such ejection; it doubles up to 30s, and ends with a successful probe, after request timeouts with a successful trial request", Into: &h.EjectionTime},
		settings.Setting{Name: "slow-start", Kind: settings.Time, Takes: anyTime, Default: "10s", Rare: true, Usage: "time until an instance that returned gets its full share of requests", Into: &h.SlowStart},
		settings.Setting{Name: "silence-limit", Kind: settings.Time, Takes: anyTime, Default: "1.25s", Rare: true, Usage: "how long an instance with waiting requests may send nothing, while others of its role do, before it is avoided; grows up to 10s if engines answer slowly", Into: &h.SilenceLimit},
		settings.Setting{Name: "probe-timeout", Kind: settings.Time, Takes: anyTime, Default: "5s", Rare: true, Usage: "time limit of one probe of an instance", Into: &h.ProbeTimeout},
	)
}

// The values of Roles.AutoRoles.
const (
	AutoRolesOff    = "off"
	AutoRolesAdvise = "advise" // only logs and counts what AutoRolesOn would do
	AutoRolesOn     = "on"
)

// Roles has the settings of advice about roles, and of automatic changes.
type Roles struct {
	AutoRoles  string        // AutoRolesOff, AutoRolesAdvise or AutoRolesOn
	TTFTTarget time.Duration // time to the first token
}

func (r *Roles) settings() settings.Table {
	return settings.About("Roles",
		settings.Setting{Name: "auto-roles", Kind: settings.Text, Takes: AutoRolesOff + ", " + AutoRolesAdvise + " or " + AutoRolesOn, Default: AutoRolesOff, Usage: "change the role of engines that are registered in both roles when one role has too few instances, by --ttft-target and --tpot-target: off, advise (only log and count what on would do) or on", Into: &r.AutoRoles},
		settings.Setting{Name: "ttft-target", Kind: settings.Time, Takes: "10ms to 10m", Default: "2s", Usage: "time to the first token that nine of ten requests should have, for the advice about roles (GET /roles) and --auto-roles; it limits no request", Into: &r.TTFTTarget},
	)
}
