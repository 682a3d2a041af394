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
	ID          string         `json:"id,omitempty"` // of its process; what it says in etcd when it is refused has it too
	Version     string         `json:"version"`
	Role        instance.Role  `json:"role"`
	Address     string         `json:"address"`
	Engine      string         `json:"engine"`         // URL by which the agent reaches it
	Etcd        []string       `json:"etcd,omitempty"` // host:port, as configured
	EtcdPrefix  string         `json:"etcd_prefix,omitempty"`
	Phase       string         `json:"phase"` // as internal/agent names them
	Reason      string         `json:"reason,omitempty"`
	State       instance.State `json:"state,omitempty"` // of the record last wanted
	Incarnation string         `json:"incarnation,omitempty"`
	Models      []string       `json:"models,omitempty"`
	// ZMQRegister is --zmq-register. An agent with it has no instance, but Registered of them.
	ZMQRegister string `json:"zmq_register,omitempty"`
	Registered  int64  `json:"registered,omitempty"`

	Registration Registration `json:"registration"`
	Process      *Process     `json:"process,omitempty"`      // nil unless the agent starts the engine
	Certificates []string     `json:"certificates,omitempty"` // problems with certificate files
}

// Process is an engine that the agent has started itself.
type Process struct {
	PID              int        `json:"pid,omitempty"` // 0 while none runs
	AgeSeconds       float64    `json:"age_seconds,omitempty"`
	Starts           int64      `json:"starts"`
	LastExit         string     `json:"last_exit,omitempty"` // for people, e.g. "exit code 1"
	LastExitAt       *time.Time `json:"last_exit_at,omitempty"`
	NextStartSeconds float64    `json:"next_start_in_seconds,omitempty"`
}

// Registration is the state of the key in etcd.
type Registration struct {
	Phase         string     `json:"phase"` // as internal/discovery names them
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

// Refused is why the instance is not registered although its agent wants it to be. It is
// "" while it is, while it leaves, and while nothing speaks against it yet.
func (r Report) Refused() string {
	switch r.Phase {
	case "draining", "gone":
		return ""
	}
	switch r.Registration.Phase {
	case "registered", "unknown": // or etcd is away
		return ""
	case "idle":
		return r.Reason
	}
	return r.Registration.Reason
}

// ErrNotServing is wrapped by what Health says of an agent whose instance
// should get no requests now.
var ErrNotServing = errors.New("not serving")

// Health is nil while the instance is registered and its engine answers, or
// while it drains. An etcd that is away changes nothing for an instance that
// was registered: whatever restarts containers by this must not act on etcd's
// troubles.
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
