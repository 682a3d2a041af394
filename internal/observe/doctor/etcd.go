package doctor

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/pdmesh/pdmesh/internal/discovery/schema"
)

// nearQuota is the share of the quota from which the size of a database is reported.
const nearQuota = 0.8

// Etcd is the state of etcd, from its own status and from probes.
type Etcd struct {
	Root      string   // key prefix of the fleet
	Refused   *Refused // nil: etcd responded
	Endpoints []Endpoint
	Alarms    []Alarm
	SchemaErr error // of etcd.CheckSchema
	Revision  int64 // of the membership; 0 if unknown
}

// Refused is the reason why etcd could not be queried.
type Refused struct {
	Auth bool // etcd rejects this user, or denies it access to our keys
	Text string
}

// Endpoint is the status of one member of etcd.
type Endpoint struct {
	Address  string
	Error    string // "" if it responds
	Size     int64  // bytes of its database
	Quota    int64  // bytes; 0 if not reported
	Leader   bool   // it has a leader
	Problems []string
}

// Alarm is an active alarm of etcd.
type Alarm struct {
	Name   string
	Member string
}

func (e *Etcd) members(r *report) {
	if e.Refused != nil && !e.Refused.Auth {
		f := Finding{
			Severity: Error, Subject: "etcd", What: "etcd does not answer", Why: e.Refused.Text,
			Cure: "start etcd, or a proxy with an embedded etcd, or set the right address with --etcd-endpoints",
		}
		if strings.Contains(e.Refused.Text, "has no leader") {
			f.What, f.Cure = "etcd has no leader: nothing can be read or written", "bring members back until more than half of them run"
		}
		f.Cure += "; meanwhile proxies use the last membership that they know"
		r.add(f)
		return
	}
	for _, m := range e.Endpoints {
		if m.Error != "" {
			f := Finding{
				Severity: Error, Subject: "etcd " + m.Address, What: "a member of etcd does not answer", Why: m.Error,
				Cure:     "start it, or remove it from the list of endpoints if it will not return; its log may have the cause",
				Commands: []string{r.etcdctl("endpoint", "health", "--cluster")},
			}
			if e.hasLeader() {
				f.Severity = Warning
				f.What += "; the others work"
			}
			r.add(f)
			continue
		}
		if !m.Leader {
			r.add(Finding{ // etcd has answered: the others have one
				Severity: Warning, Subject: "etcd " + m.Address, What: "it has no leader; the others work",
				Why:      "it cannot reach the other members",
				Cure:     "check the network between its peer address and theirs",
				Commands: []string{r.etcdctl("endpoint", "status", "--cluster", "-w", "table")},
			})
		}
		for _, text := range m.Problems {
			if !strings.Contains(text, "NOSPACE") && !strings.Contains(text, "no leader") { // reported by other checks
				r.add(Finding{Severity: Warning, Subject: "etcd " + m.Address, What: "a member of etcd reports a problem", Why: text, Cure: "look at its log"})
			}
		}
		if m.Quota > 0 && float64(m.Size) > nearQuota*float64(m.Quota) && len(e.Alarms) == 0 {
			r.add(Finding{
				Severity: Warning, Subject: "etcd " + m.Address,
				What:     fmt.Sprintf("its database has %d of the %d bytes of its quota", m.Size, m.Quota),
				Why:      "the history is not compacted, or other programs store much in this etcd; when the quota is reached, no instance can register",
				Cure:     "compact and defragment it, or set a larger --quota-backend-bytes",
				Commands: e.freeSpace(r),
			})
		}
	}
}

// hasLeader reports whether a member that responds has a leader, which implies a quorum.
func (e *Etcd) hasLeader() bool {
	return slices.ContainsFunc(e.Endpoints, func(m Endpoint) bool { return m.Error == "" && m.Leader })
}

// small reports whether all databases are below nearQuota. Releases before etcd 3.6 report no quota.
func (e *Etcd) small() bool {
	return !slices.ContainsFunc(e.Endpoints, func(m Endpoint) bool { return m.Quota == 0 || float64(m.Size) > nearQuota*float64(m.Quota) })
}

// freeSpace returns the commands that free space.
func (e *Etcd) freeSpace(r *report) []string {
	if e.Revision == 0 {
		return nil
	}
	return []string{
		r.etcdctl("compact", strconv.FormatInt(e.Revision, 10)),
		r.etcdctl("defrag", "--cluster"),
	}
}

func (e *Etcd) alarms(r *report) {
	for _, a := range e.Alarms {
		f := Finding{Severity: Error, Subject: "etcd member " + a.Member, What: "etcd has the alarm " + a.Name}
		switch a.Name {
		case "NOSPACE":
			f.Why = "its database has reached its quota: no instance can register, and no change is possible; registered instances stay"
			f.Cure = "compact its history, defragment it, then disarm the alarm; if its keys themselves fill it, first delete what is not needed, or set a larger --quota-backend-bytes if it is not embedded in a proxy"
			f.Commands = e.freeSpace(r)
			if e.small() {
				f.Why = "its database is far below its quota: the disk of an embedded etcd is nearly full, or an earlier alarm was not disarmed; no instance can register, and no change is possible; registered instances stay"
				f.Cure = "if it is embedded in a proxy, the disk of its data directory is nearly full: free space there, and the proxy ends the alarm; if it is not, disarm the alarm"
				f.Commands = nil
			}
			f.Commands = append(f.Commands, r.etcdctl("alarm", "disarm"))
		case "CORRUPT":
			f.Why = "this member's data differ from the others'"
			f.Cure = "remove the member, delete its data, and add it again. If it is the only member, restore a snapshot, or start it empty; agents then register again"
			f.Commands = []string{r.etcdctl("member", "list", "-w", "table")}
		default:
			f.Why, f.Cure = "etcd has raised it", "see etcd's documentation of this alarm"
		}
		r.add(f)
	}
}

func (e *Etcd) auth(r *report) {
	if e.Refused == nil || !e.Refused.Auth {
		return
	}
	r.add(Finding{
		Severity: Error, Subject: "etcd", What: "etcd refuses this user", Why: e.Refused.Text,
		Cure: "set PD_ETCD_PASSWORD to the password of the operator's user and run the first command; " +
			"root of etcd sets up users and their rights as the second command shows",
		Commands: []string{
			r.pdctl("status", "--etcd-username", schema.RoleOperator),
			r.pdctl("auth", "init", "--dry-run"),
		},
	})
}

func (e *Etcd) schema(r *report) {
	f := Finding{Severity: Error, Subject: e.Root + "meta/schema"}
	switch {
	case e.SchemaErr == nil:
		return
	case errors.Is(e.SchemaErr, schema.ErrNewer):
		f.What = "the keys in etcd are of a newer version than this program knows"
		f.Cure = "upgrade pdctl, and every proxy and agent to the newer release: those of this release read these keys, and write none; " +
			"or keep this fleet below another --etcd-prefix"
	default:
		f.What = "another program uses this prefix"
		f.Cure = "use another --etcd-prefix for this fleet"
	}
	f.Why = e.SchemaErr.Error()
	f.Commands = []string{r.etcdctl("get", e.Root+"meta/schema")}
	r.add(f)
}
