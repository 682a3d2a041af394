package program

import (
	"context"
	"os"

	"github.com/pdmesh/pdmesh/internal/cli/background"
	"github.com/pdmesh/pdmesh/internal/cli/version"
	"github.com/pdmesh/pdmesh/internal/discovery/lease"
	"github.com/pdmesh/pdmesh/internal/instance"
)

// publishRefusal writes to etcd why the instance is not registered, and deletes the reason once it no
// longer applies. pdctl doctor on other machines reads it. stop waits.
func (s *service) publishRefusal(ctx context.Context) (stop func()) {
	w := lease.NewRefusedWriter(s.cli, s.layout, s.id, s.TTL, s.logFor("refusal"))
	host, err := os.Hostname()
	if err != nil {
		host = ""
	}
	report := func() *lease.RefusedAgent {
		r := s.report()
		why := r.Refused()
		if why == "" {
			return nil
		}
		return &lease.RefusedAgent{
			ID: s.id, Role: r.Role, Address: r.Address, Host: instance.Printable(host, 80), Agent: "pd-agent/" + version.Version,
			Phase: r.Phase, Registration: lease.Phase(r.Registration.Phase), Reason: why,
		}
	}
	ctx, cancel := context.WithCancel(ctx)
	wait := background.Start(ctx, func(context.Context) { w.Run(ctx, report) })
	return func() { cancel(); wait() }
}
