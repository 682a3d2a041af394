package schema

import "github.com/pdmesh/pdmesh/internal/instance"

// EtcdRole is what one kind of program may do at an etcd with users. Its name is that of
// its user, too.
type EtcdRole struct {
	Name   string
	What   string // for people
	Grants []Grant
}

// Grant lets a role read what is below a prefix, and with Write change it.
type Grant struct {
	Prefix string
	Write  bool
}

// The names of the roles.
const (
	RoleAgentPrefill = "pd-agent-prefill"
	RoleAgentDecode  = "pd-agent-decode"
	RoleProxy        = "pd-proxy"
	RoleOperator     = "pd-operator"
)

// EtcdRoles lists who may do what, by who writes what of the layout.
//
// An agent writes the instances of its role alone, and reads what decides about them. Any
// may report that it is refused, also one with the user of the other role, which is why. The
// schema is there before it, from "pdctl auth init" or a proxy. A proxy and an operator see
// all. Only proxies write presences and load digests: they are the proof that an
// instance is drained.
func EtcdRoles(l Layout) []EtcdRole {
	agent := func(name string, role instance.Role) EtcdRole {
		below := string(role) + "/"
		return EtcdRole{Name: name, What: "agents of " + string(role) + " instances", Grants: []Grant{
			{Prefix: l.root + below, Write: true},
			{Prefix: l.root + segPending + below},
			{Prefix: l.root + segOverride + below},
			{Prefix: l.root + segAgents, Write: true},
			{Prefix: l.Schema()},
		}}
	}
	changes := func(more ...string) []Grant {
		grants := []Grant{{Prefix: l.root}}
		for _, p := range append([]string{
			string(instance.Prefill) + "/", string(instance.Decode) + "/", segPending, segOverride, segAudit, "meta/", string(Limits) + "/", string(Models) + "/",
		}, more...) {
			grants = append(grants, Grant{Prefix: l.root + p, Write: true})
		}
		return grants
	}
	return []EtcdRole{
		agent(RoleAgentPrefill, instance.Prefill),
		agent(RoleAgentDecode, instance.Decode),
		{Name: RoleProxy, What: "proxies", Grants: changes(segProxies, segLoad)},
		{Name: RoleOperator, What: "people with pdctl", Grants: changes()},
	}
}
