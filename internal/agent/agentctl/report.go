package agentctl

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/pdmesh/pdmesh/internal/instance"
)

// Report is the state of an agent.
type Report struct {
	ID          string         `json:"id,omitempty"` // of its process; also in lease.RefusedAgent
	Version     string         `json:"version"`
	Role        instance.Role  `json:"role"`
	Address     string         `json:"address"`
	Engine      string         `json:"engine"`         // URL by which the agent reaches it
	Etcd        []string       `json:"etcd,omitempty"` // host:port, as configured
	EtcdPrefix  string         `json:"etcd_prefix,omitempty"`
	Phase       string         `json:"phase"` // an agent.Phase
	Reason      string         `json:"reason,omitempty"`
	State       instance.State `json:"state,omitempty"` // of the last record that the agent set
	Incarnation string         `json:"incarnation,omitempty"`
	Models      []string       `json:"models,omitempty"`
	// ZMQRegister is --zmq-register. Such an agent registers Registered instances instead of one.
	ZMQRegister string `json:"zmq_register,omitempty"`
	Registered  int64  `json:"registered,omitempty"`

	Registration Registration `json:"registration"`
	Process      *Process     `json:"process,omitempty"`      // nil unless the agent starts the engine
	Certificates []string     `json:"certificates,omitempty"` // problems with certificate files
}

// Process is the state of an engine's process that the agent starts.
type Process struct {
	PID              int        `json:"pid,omitempty"` // 0 while none runs
	AgeSeconds       float64    `json:"age_seconds,omitempty"`
	Starts           int64      `json:"starts"`
	LastExit         string     `json:"last_exit,omitempty"` // human-readable, e.g. "exit code 1"
	LastExitAt       *time.Time `json:"last_exit_at,omitempty"`
	NextStartSeconds float64    `json:"next_start_in_seconds,omitempty"`
}

// Registration is the state of the key in etcd.
type Registration struct {
	Phase         string     `json:"phase"` // a lease.Phase
	Reason        string     `json:"reason,omitempty"`
	Lease         string     `json:"lease,omitempty"` // hexadecimal, as etcdctl shows it
	Revision      int64      `json:"revision,omitempty"`
	LastRenewal   *time.Time `json:"last_renewal,omitempty"`
	AgeSeconds    float64    `json:"last_renewal_age_seconds,omitempty"`
	Renewals      int64      `json:"renewals"`
	RenewalFails  int64      `json:"renewal_failures"`
	LeasesLost    int64      `json:"leases_lost"`
	Registrations int64      `json:"registrations"`
	Conflicts     int64      `json:"conflicts"`
}

// WriteJSON writes the report as indented JSON.
func (r Report) WriteJSON(w io.Writer) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return e.Encode(r)
}

// Refused returns why the instance is not registered although its agent wants to register it. It
// returns "" while the instance is registered or drains, and while no reason is known.
func (r Report) Refused() string {
	switch r.Phase {
	case "draining", "gone":
		return ""
	}
	switch r.Registration.Phase {
	case "registered", "unknown": // etcd may be unavailable
		return ""
	case "idle":
		return r.Reason
	}
	return r.Registration.Reason
}

// ErrNotServing is wrapped by the error of Health for an instance that should get no requests now.
var ErrNotServing = errors.New("not serving")

// Health returns nil while the instance is registered and its engine answers, or while it
// drains. An etcd outage does not change this for a registered instance: supervisors must not
// restart containers because of etcd.
func (r Report) Health() error {
	switch r.Phase {
	case "serving", "draining":
		return nil
	}
	why := cmp.Or(r.Reason, r.Registration.Reason)
	if why == "" {
		return fmt.Errorf("%w: %s", ErrNotServing, r.Phase)
	}
	return fmt.Errorf("%w: %s: %s", ErrNotServing, r.Phase, instance.Printable(why, 400))
}
