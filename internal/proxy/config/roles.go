package config

import (
	"time"

	"github.com/pdmesh/pdmesh/internal/cli/settings"
)

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
