package route

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/internal/pdctl/output"
	"github.com/pdmesh/pdmesh/internal/pdctl/session"
)

const ratioHelp = `ratio shows how much load each role has, and how many instances it should have.

PRESSURE is the predicted load in units of the targets (--ttft-target and --tpot-target of
the proxy): above 1 a target is missed. For prefill it is the time to the first token that
nine of ten requests have, for decode the time per token, or the use of the KV cache if
that is larger. One instance less is wanted only if the pressure would stay below 0.85.

All proxies compute the same, from the requests of all of them: pdctl asks the first one in
etcd, or that of --proxy. "-" is for a model of which too few requests were measured: the
proxy needs streamed answers of 8 tokens or more (in JSON, known is false then).`

// Ratio returns the command ratio.
func Ratio(s *session.Session) *cobra.Command {
	var proxy string
	cmd := &cobra.Command{
		Use: "ratio", Short: "show the load of each role, and how many instances it should have", Long: ratioHelp,
		Example: "  pdctl ratio\n  pdctl ratio -o json | jq '.roles[] | select(.pressure > 1)'",
		Args:    cobra.NoArgs,
		RunE:    func(cmd *cobra.Command, _ []string) error { return ratio(cmd.Context(), s, proxy) },
	}
	cmd.Flags().StringVar(&proxy, "proxy", "", "URL of the proxy, or of its --admin-listen if it has one (default: the first proxy in etcd)")
	return cmd
}

func ratio(ctx context.Context, s *session.Session, proxy string) error {
	if proxy == "" {
		urls, err := s.ProxyURLs(ctx)
		if err != nil {
			return err
		}
		proxy = urls[0]
	}
	raw, err := s.AskProxy(ctx, proxy, "/roles", nil, nil, nil)
	if err != nil {
		return err
	}
	var answer struct{ Roles []instance.Advice }
	if err := json.Unmarshal(raw, &answer); err != nil {
		return fmt.Errorf("%s is no proxy of this version: %s", instance.Printable(proxy, 200), instance.Printable(string(raw), 200))
	}
	if s.Out.Structured() {
		return s.Out.WriteRaw(raw)
	}
	if len(answer.Roles) == 0 {
		return s.Out.Println("There are no usable instances.")
	}
	t := output.NewTable("MODEL", "ROLE", "INSTANCES", "WANTED", "PRESSURE", "REASON")
	for _, a := range answer.Roles {
		wanted, pressure := "-", "-"
		if a.Known {
			wanted, pressure = strconv.Itoa(a.Wanted), fmt.Sprintf("%.2f", a.Pressure)
		}
		t.AppendRow([]any{instance.Printable(a.Model, 120), a.Role, a.Instances, wanted, pressure, instance.Printable(a.Reason, 300)})
	}
	return output.Render(s.Out.Stdout, t)
}
