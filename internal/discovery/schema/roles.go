package schema

import "github.com/pdmesh/pdmesh/internal/instance"

// EtcdRole is the role of one kind of program in an etcd with authentication. The user of that kind
// of program has the same name.
type EtcdRole struct {
	Name   string
	What   string // description
	Grants []Grant
}

// Grant lets a role read the keys with a prefix, and write them if Write is set.
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

// EtcdRoles returns the roles of agents, proxies and operators.
//
// An agent writes only the instances of its role, and reads their pending adds and overrides.
// Agents of both roles write agents/, so that an agent with the user of the wrong role can report
// the refusal. "pdctl auth init" or a proxy writes the schema key before an agent starts. Proxies
// and operators read all keys. Only proxies write presences and load digests, which prove that an
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
		{Name: RoleOperator, What: "operators who use pdctl", Grants: changes()},
	}
}
