package route

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/pdmesh/pdmesh/internal/cli"
	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/internal/pdctl/output"
	"github.com/pdmesh/pdmesh/internal/pdctl/session"
)

const ratioHelp = `ratio shows whether there are enough prefill and decode instances for the current load. Below
the table is a sentence for each role: what was measured, what to change, and the command
for it. WANTED is the number that meets the targets; an engine in both roles counts half.

PRESSURE is the load divided by the target: above 1 the target is missed. For prefill it is
--ttft-target of the proxy, for nine of ten requests; for decode --tpot-target, or a full KV
cache if that is closer. One instance less is wanted only if it would stay below 0.9. "-"
is for a model of which too few requests were measured. All proxies compute the same: pdctl
queries the first one in etcd, or that of --proxy.`

// Ratio returns the command ratio.
func Ratio(s *session.Session) *cobra.Command {
	var proxy string
	cmd := &cobra.Command{
		Use: "ratio", SuggestFor: []string{"roles", "scale"}, Short: "show whether there are enough prefill and decode instances, and what to change", Long: ratioHelp,
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
		if len(urls) == 0 {
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
		return fmt.Errorf("%s does not answer as a proxy of this version: %s", instance.Printable(proxy, 200), instance.Printable(string(raw), 200))
	}
	if s.Out.Structured() {
		return s.Out.WriteRaw(raw)
	}
	if len(answer.Roles) == 0 {
		return s.Out.Println("There are no usable instances.")
	}
	t := output.NewTable("MODEL", "ROLE", "INSTANCES", "WANTED", "PRESSURE")
	var advice []string
	for _, a := range answer.Roles {
		wanted, pressure := "-", "-"
		if a.Known {
			wanted, pressure = strconv.Itoa(a.Wanted), fmt.Sprintf("%.2f", a.Pressure)
		}
		t.AppendRow([]any{instance.Printable(a.Model, 120), a.Role, a.Instances, wanted, pressure})
		advice = append(advice, advise(&a))
	}
	return s.Out.Println(t.Render() + "\n\n" + strings.Join(slices.Compact(advice), "\n")) // one sentence for a model without measurements
}

// advise returns the advice for a role: the measurement, the change, and the command for it.
func advise(a *instance.Advice) string {
	needed, what, then := fmt.Sprintf("%s needs %s and has %g", a.Role, cli.Count(a.Wanted, "instance"), a.Instances), "", ""
	start := fmt.Sprintf(". Start more engines, or move one that has both roles: pdctl role %s HOST:PORT", a.Role)
	switch more := float64(a.Wanted) - a.Instances; {
	case !a.Known && a.Instances == 0:
		what, then = fmt.Sprintf("no advice yet for %s", a.Role), start
	case !a.Known:
		what, then = "no advice yet", ". Send streamed requests with answers of 8 tokens or more"
	case more > 0 && a.Pressure > 1: // else only half an engine in both roles is missing
		what, then = needed, start
	case a.Pressure > 1:
		what = fmt.Sprintf("%s misses its target with %g instances", a.Role, a.Instances)
	case more <= -1:
		what, then = needed, fmt.Sprintf(". Before you stop one: pdctl drain %s HOST:PORT --wait", a.Role)
	default:
		what = fmt.Sprintf("%s has as many instances as it needs (%g)", a.Role, a.Instances)
	}
	return instance.Printable(a.Model, 120) + ": " + what + ": " + instance.Printable(a.Reason, 300) + then
}
