package program

import (
	"context"
	"os"

	"github.com/pdmesh/pdmesh/internal/cli/background"
	"github.com/pdmesh/pdmesh/internal/cli/version"
	"github.com/pdmesh/pdmesh/internal/discovery/lease"
	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/internal/observe/logging"
)

// publishRefusal writes to etcd why the instance is not registered, for pdctl doctor on other
// machines, for as long as that is so. stop waits.
func (s *service) publishRefusal(ctx context.Context) (stop func()) {
	w := lease.NewRefusedWriter(s.cli, s.layout, s.ctl.ID, s.TTL, s.log.WithField(logging.FieldComponent, "refusal"))
	host, err := os.Hostname()
	if err != nil {
		host = ""
	}
	report := func() *lease.RefusedAgent {
		r := s.ctl.Report()
		why := r.Refused()
		if why == "" {
			return nil
		}
		return &lease.RefusedAgent{
			ID: s.ctl.ID, Role: r.Role, Address: r.Address, Host: instance.Printable(host, 80), Agent: "pd-agent/" + version.Version,
			Phase: r.Phase, Registration: lease.Phase(r.Registration.Phase), Reason: why,
		}
	}
	ctx, cancel := context.WithCancel(ctx)
	wait := background.Start(ctx, func(context.Context) { w.Run(ctx, report) })
	return func() { cancel(); wait() }
}
