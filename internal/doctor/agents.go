package doctor

import (
	"cmp"
	"fmt"

	"github.com/pdmesh/pdmesh/internal/discovery/lease"
)

// agents tells of those of this machine that are not registered; conflicts and wrong
// models have checks of their own.
func (p *Picture) agents(say func(Finding)) {
	for _, r := range p.Agents {
		key := string(r.Role) + "/" + r.Address
		f := Finding{
			Severity: Warning, Subject: key, What: fmt.Sprintf("its agent on this machine is %s, and its registration %s", r.Phase, r.Registration.Phase),
			Why:      cmp.Or(r.Registration.Reason, r.Reason, "it does not say"),
			Commands: []string{shell("agent", "status", "--role", string(r.Role), "--address", r.Address)},
		}
		switch phase := lease.Phase(r.Registration.Phase); {
		case wrongModel.MatchString(r.Reason), phase == lease.Conflict, phase == lease.Registered:
			continue
		case phase == lease.Overridden:
			f.Severity, f.Cure = Note, "allow it again if it is to serve"
			f.Commands = []string{p.pdctl("allow", string(r.Role), r.Address)}
		case phase == lease.StaticPresent:
			f.Severity, f.Cure = Note, "remove the static record if the agent is to register the instance"
			f.Commands = []string{p.pdctl("remove", string(r.Role), r.Address), p.pdctl("allow", string(r.Role), r.Address)}
		default:
			f.Cure = "see to the reason: the engine has to answer /health and /v1/models, and etcd the agent"
		}
		say(f)
	}
}
