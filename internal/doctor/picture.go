package doctor

import (
	"time"

	"github.com/pdmesh/pdmesh/internal/agentctl"
	"github.com/pdmesh/pdmesh/internal/certs"
	"github.com/pdmesh/pdmesh/internal/discovery/lease"
	"github.com/pdmesh/pdmesh/internal/discovery/store"
	"github.com/pdmesh/pdmesh/internal/instance"
)

// Picture is what was gathered of a fleet. What could not be had is zero, and stands in
// Unseen.
type Picture struct {
	Now       time.Time
	Reach     Reach
	Refused   *Refused // nil: etcd has answered
	Endpoints []Endpoint
	Alarms    []Alarm
	SchemaErr error // of etcd.CheckSchema
	Root      string
	// Snapshot is the membership, as the records say. It is nil where that is not known.
	Snapshot *instance.Snapshot
	Removals []store.Removal
	Proxies  []Proxy
	// Probes are the answers of engines that were asked from here; nil: well.
	Probes map[instance.Key]error
	// Models are what those serve that were asked for it.
	Models map[instance.Key]instance.Facts
	// Agents are those of this machine.
	Agents []agentctl.Report
	// Afar are those that say in etcd that they are refused, this machine's too.
	Afar []lease.RefusedAgent
	// Certificates are those of the files that were given here.
	Certificates []certs.Status
	Unseen       []Unseen
}

// Reach is what commands need to reach the same etcd.
type Reach struct{ Pdctl, Etcdctl []string }

// Refused is why etcd could not be asked.
type Refused struct {
	Auth bool // it does not take this user, or denies it our keys
	Text string
}

// Endpoint is one member of etcd as it says of itself.
type Endpoint struct {
	Address  string
	Error    string // it does not answer
	Size     int64  // bytes of its database
	Quota    int64  // 0: it does not say
	Leader   bool   // it knows one
	Problems []string
}

// Alarm is one of etcd.
type Alarm struct {
	Name   string
	Member string
}

// Proxy is one proxy: what it says, and how it stood at a second look.
type Proxy struct {
	lease.ProxyPresence
	Load *lease.ProxyLoad // nil: it tells nothing of its load
	// Behind is the revision that it had not applied at either look, 0 for none.
	Behind int64
	// Silent tells that it has something in flight and did not renew its digest between
	// the looks.
	Silent bool
	// Watched is the time between the looks.
	Watched time.Duration
}

// Unseen is something that could not be checked.
type Unseen struct{ What, Why string }
