package doctor

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/pdmesh/pdmesh/internal/discovery/schema"
)

// nearQuota is the part of its quota at which a database is told of.
const nearQuota = 0.8

func (p *Picture) etcd(say func(Finding)) {
	if p.Refused != nil && !p.Refused.Auth {
		say(Finding{
			Severity: Error, Subject: "etcd", What: "etcd does not answer", Why: p.Refused.Text,
			Cure: "start etcd, or a proxy with its own etcd, or give the right address with --etcd-endpoints; meanwhile proxies use the last membership that they know",
		})
		return
	}
	for _, e := range p.Endpoints {
		if e.Error != "" {
			say(Finding{
				Severity: Error, Subject: "etcd " + e.Address, What: "a member of etcd does not answer", Why: e.Error,
				Cure:     "start it, or remove it from the list of endpoints if it will not return; its log may have the cause",
				Commands: []string{p.etcdctl("endpoint", "health", "--cluster")},
			})
			continue
		}
		if !e.Leader {
			say(Finding{
				Severity: Error, Subject: "etcd " + e.Address, What: "it has no leader: nothing can be written",
				Why:      "most members of its cluster are away, or cannot reach each other",
				Cure:     "bring members back until more than half of them run",
				Commands: []string{p.etcdctl("endpoint", "status", "--cluster", "-w", "table")},
			})
		}
		for _, text := range e.Problems {
			if !strings.Contains(text, "NOSPACE") && !strings.Contains(text, "no leader") { // told of elsewhere
				say(Finding{Severity: Warning, Subject: "etcd " + e.Address, What: "a member of etcd reports a problem", Why: text, Cure: "look at its log"})
			}
		}
		if e.Quota > 0 && float64(e.Size) > nearQuota*float64(e.Quota) && len(p.Alarms) == 0 {
			say(Finding{
				Severity: Warning, Subject: "etcd " + e.Address,
				What:     fmt.Sprintf("its database has %d of the %d bytes of its quota", e.Size, e.Quota),
				Why:      "the history is not compacted, or other programs store much in this etcd; when the quota is reached, no instance can register",
				Cure:     "compact and defragment it, or give it a larger --quota-backend-bytes",
				Commands: p.makeRoom(),
			})
		}
	}
}

// makeRoom are the commands that give space back.
func (p *Picture) makeRoom() []string {
	if p.Snapshot == nil {
		return nil
	}
	return []string{
		p.etcdctl("compact", strconv.FormatInt(p.Snapshot.Revision, 10)),
		p.etcdctl("defrag", "--cluster"),
	}
}

func (p *Picture) alarms(say func(Finding)) {
	for _, a := range p.Alarms {
		f := Finding{Severity: Error, Subject: "etcd member " + a.Member, What: "etcd has the alarm " + a.Name}
		switch a.Name {
		case "NOSPACE":
			f.Why = "its database has reached its quota: no instance can register or renew its lease, and no change is possible"
			f.Cure = "compact its history, defragment it, then disarm the alarm; if its keys themselves fill it, delete what is not needed first or give it a larger --quota-backend-bytes"
			f.Commands = append(p.makeRoom(), p.etcdctl("alarm", "disarm"))
		case "CORRUPT":
			f.Why = "this member's data differ from the others'"
			f.Cure = "remove the member, delete its data, and add it again. If it is the only member, restore a snapshot, or start it empty; agents then register again"
			f.Commands = []string{p.etcdctl("member", "list", "-w", "table")}
		default:
			f.Why, f.Cure = "etcd has raised it", "see etcd's documentation of this alarm"
		}
		say(f)
	}
}

func (p *Picture) auth(say func(Finding)) {
	if p.Refused == nil || !p.Refused.Auth {
		return
	}
	say(Finding{
		Severity: Error, Subject: "etcd", What: "etcd refuses this user", Why: p.Refused.Text,
		Cure: "give the operator's user, with its password in PD_ETCD_PASSWORD or --etcd-password-file; " +
			"root of etcd sets up users and their rights with the second command",
		Commands: []string{
			p.pdctl("status", "--etcd-username", schema.RoleOperator, "--etcd-password-file", "operator.password"),
			p.pdctl("auth", "init", "--dry-run"),
		},
	})
}

func (p *Picture) schema(say func(Finding)) {
	f := Finding{Severity: Error, Subject: p.Root + "meta/schema"}
	switch {
	case p.SchemaErr == nil:
		return
	case errors.Is(p.SchemaErr, schema.ErrNewer):
		f.What = "the keys in etcd are of a newer version than this program knows"
		f.Cure = "upgrade pdctl, and every proxy and agent to the newer release: those of this release read these keys, and write none; " +
			"or keep this fleet below another --etcd-prefix"
	default:
		f.What = "another program uses this prefix"
		f.Cure = "use another --etcd-prefix for this fleet"
	}
	f.Why = p.SchemaErr.Error()
	f.Commands = []string{p.etcdctl("get", p.Root+"meta/schema")}
	say(f)
}

func (p *Picture) couldNotSee(say func(Finding)) {
	for _, u := range p.Unseen {
		say(Finding{
			Severity: Note, Subject: u.What, What: "could not be checked", Why: u.Why,
			Cure: "use an etcd user with the right: root sees alarms, the operator sees all keys below " + p.Root,
		})
	}
}
