// Package model implements pdctl model, which shows and changes model routes.
package model

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/pdmesh/pdmesh/internal/cli"
	"github.com/pdmesh/pdmesh/internal/cli/settings"
	"github.com/pdmesh/pdmesh/internal/discovery/lease"
	"github.com/pdmesh/pdmesh/internal/discovery/schema"
	"github.com/pdmesh/pdmesh/internal/discovery/store"
	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/internal/pdctl/output"
	"github.com/pdmesh/pdmesh/internal/pdctl/session"
)

const modelHelp = `model shows and changes model routes: names that clients may use as model, and the models
that serve their requests. A route with one target is an alias; several share the requests.`

const routeHelp = `route sets a model route: proxies send requests for the model NAME to the targets, in
proportion to their weights. It replaces the route that NAME had.

A target is [WEIGHT:]MODEL[{SELECTOR}]. MODEL is a model that engines serve. WEIGHT is 0 to
10000, by default 100. The share of a target is its weight divided by the sum of all: write
chat=80:old,20:new for 20 %. A target of weight 0 gets requests only while no other can serve
them; the share of a target without usable instances goes to the others. "pdctl model ls"
counts the requests of each target. SELECTOR restricts the target to instances whose labels
match, prefill and decode:
KEY=VALUE, KEY!=VALUE, KEY in (A,B), KEY notin (A,B), KEY, !KEY, separated by commas.
Quote a target with a selector for the shell.

--sticky keeps requests on one target: those of a session (the default), those with an API
key of the same name, or none. Other requests are split one by one.

NAME must not be a model that an engine serves, unless it is one of the targets.`

// Command returns the command model.
func Command(s *session.Session) *cobra.Command {
	model := &cobra.Command{
		Use: "model", Short: "show and change model routes", Long: modelHelp, Args: cobra.NoArgs,
		Example: "  pdctl model route gpt-4o=Qwen2.5-72B\n  pdctl model ls",
		RunE:    func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	model.AddCommand(setCommand(s), listCommand(s), removeCommand(s))
	return model
}

func setCommand(s *session.Session) *cobra.Command {
	var r schema.ModelRoute
	var o store.DocumentOptions
	cmd := &cobra.Command{
		Use: "route NAME=TARGET[,TARGET...]", Short: "set a model route", Long: routeHelp,
		Example: "  pdctl model route gpt-4o=Qwen2.5-72B --reason \"clients with a fixed name\"\n" +
			"  pdctl model route chat=70:new,30:old --sticky session\n" +
			"  pdctl model route 'qwen=90:qwen{tier=stable},10:qwen{tier=canary}' --for 1h\n" +
			"  pdctl model route qwen=80:qwen,20:qwen-next --dry-run",
		Args: cobra.ExactArgs(1),
		RunE: s.Wrap(func(cmd *cobra.Command, args []string) error {
			name, targets, ok := strings.Cut(args[0], "=")
			if !ok {
				return cli.Wrongf("%q: write NAME=TARGET", instance.Printable(args[0], 200))
			}
			if at := percent.FindString(targets); at != "" {
				return cli.Wrongf("%q: a weight is a number without %%, such as 20:MODEL", instance.Printable(args[0], 200))
			}
			if err := session.CheckFor(o.For); err != nil {
				return err
			}
			r.V, r.Reason = 1, o.Reason
			for _, part := range instance.SplitOutside(targets, '{', '}') { // at commas outside of braces
				r.Targets = append(r.Targets, parseTarget(strings.TrimSpace(part)))
			}
			if r.Sticky == schema.StickySession {
				r.Sticky = "" // the default
			}
			k := instance.Key{Role: schema.Models, Address: name}
			if err := errors.Join(r.Check(), schema.CheckDocument(k, []byte("{}"))); err != nil {
				return cli.Wrongf("%q: %w", instance.Printable(args[0], 200), err)
			}
			return s.With(cmd.Context(), func(conn *session.Conn) error { return set(cmd.Context(), s, conn, k, &r, o) })
		}),
	}
	fs := cmd.Flags()
	fs.StringVar(&r.Sticky, "sticky", schema.StickySession, "what keeps requests on one target: session, key (the name of the API key) or none")
	fs.StringVar(&o.Reason, "reason", "", "reason, for the audit log and model ls")
	settings.DurationVar(fs, &o.For, "for", 0, "how long it is in effect, e.g. 1h, at least 2s; 0: until it is removed")
	return s.Writes(cmd)
}

// percent finds a weight that is written as a percentage.
var percent = regexp.MustCompile(`(^|,)\s*[0-9.]+\s*%:`)

// parseTarget reads a target as on the command line.
func parseTarget(text string) (t schema.ModelTarget) {
	if weight, rest, ok := strings.Cut(text, ":"); ok {
		if n, err := strconv.Atoi(weight); err == nil {
			t.Weight, text = &n, rest
		}
	}
	if model, labels, ok := strings.Cut(text, "{"); ok && strings.HasSuffix(labels, "}") {
		text, t.Selector = model, strings.TrimSuffix(labels, "}")
	}
	t.Model = text
	return t
}

func set(ctx context.Context, s *session.Session, conn *session.Conn, k instance.Key, r *schema.ModelRoute, o store.DocumentOptions) error {
	value, err := schema.Encode(r)
	if err != nil {
		return cli.Wrong(err)
	}
	seen, _, err := s.Seen(ctx, conn)
	if err != nil {
		return err
	}
	if why := r.Conflict(k.Address, seen.All()); why != "" {
		return errors.New(why)
	}
	result := session.Result{Role: k.Role, Address: k.Address, Outcome: "already", Text: "unchanged"}
	switch result.Revision, err = conn.Store.Documents.Put(ctx, k, value, o); {
	case err != nil:
		result = result.Failed("%w", err)
	case result.Revision > 0:
		result.Outcome, result.Text = "set", "set"
		if o.For > 0 {
			result.Text += fmt.Sprintf(" for %s", o.For)
		}
	}
	s.Line(result)
	if err != nil {
		return s.Finish([]session.Result{result})
	}
	for _, t := range schema.ListModelRoute(instance.Document{Key: k, Value: value}, seen.All()).Targets {
		if t.Prefill+t.Decode == 0 {
			fmt.Fprintf(s.Out.Stderr, "warning: no instance of target %s can be used now; its share goes to the other targets, if there are any\n", t.Target)
		}
	}
	return s.Finish([]session.Result{result})
}

const lsHelp = `ls lists the model routes: for each target its weight, how many prefill and decode instances
it can use now, and the requests that it served or failed since the proxies started, with its
share of those of the route. NOTE has when a route with --for ends ("ends" in -o json).

pdctl sums the requests in /status of the proxies in etcd; "-" if none of them answers. The
metric pd_model_route_requests_total has the same counts.
-o json prints {"routes": [...], "counted_by": N}, N the proxies that have answered.`

func listCommand(s *session.Session) *cobra.Command {
	return &cobra.Command{
		Use: "ls", Aliases: []string{"list"}, Short: "list the model routes", Long: lsHelp, Args: cobra.NoArgs,
		Example: "  pdctl model ls\n  pdctl model ls -o json",
		RunE: s.Wrap(func(cmd *cobra.Command, _ []string) error {
			return s.With(cmd.Context(), func(conn *session.Conn) error { return list(cmd.Context(), s, conn) })
		}),
	}
}

func list(ctx context.Context, s *session.Session, conn *session.Conn) error {
	documents, err := conn.Store.Documents.List(ctx, schema.Models)
	if err != nil {
		return s.Hint(err)
	}
	seen, presences, err := s.Seen(ctx, conn)
	if err != nil {
		return err
	}
	routes := []instance.ListedModelRoute{}
	s.NoteKept(presences, string(schema.Models)+"/")
	ends, err := conn.Store.Reader.Ends(ctx, conn.Layout.Document(instance.Key{Role: schema.Models}))
	if err != nil {
		return s.Hint(err)
	}
	requests, proxies := map[string]uint64{}, 0
	if len(documents) > 0 {
		requests, proxies = countRequests(ctx, s, presences)
	}
	table := output.NewTable("NAME", "TARGET", "WEIGHT", "REQUESTS", "SHARE", "PREFILL", "DECODE", "STICKY", "NOTE")
	for _, d := range documents {
		r := schema.ListModelRoute(d, seen.All())
		note, end := r.Reason, ""
		if r.Problem != "" {
			note = "not used: " + r.Problem
		}
		if at, ok := ends[d.Key]; ok {
			r.Ends, end = &at, output.EndsIn(at)
		}
		routes = append(routes, r)
		if len(r.Targets) == 0 {
			table.AppendRow([]any{r.Name, "-", "-", "-", "-", "-", "-", "-", instance.JoinReasons(note, end)})
		}
		all := uint64(0)
		for i := range r.Targets {
			all += requests[r.Name+" "+r.Targets[i].Target]
		}
		for i := range r.Targets {
			t, text, count, share := &r.Targets[i], note, "-", "-"
			if t.Requests = requests[r.Name+" "+t.Target]; proxies > 0 {
				count = strconv.FormatUint(t.Requests, 10)
			}
			if all > 0 {
				share = fmt.Sprintf("%.1f %%", 100*float64(t.Requests)/float64(all))
			}
			if t.Prefill+t.Decode == 0 && r.Problem == "" {
				text = "no usable instance"
			}
			table.AppendRow([]any{r.Name, t.Target, t.Weight, count, share, t.Prefill, t.Decode, r.Sticky, cmp.Or(instance.JoinReasons(text, end), "-")})
		}
	}
	return s.Out.List(map[string]any{"routes": routes, "counted_by": proxies}, table, "No model routes. Add one with: pdctl model route NAME=MODEL")
}

// countRequests returns the requests that proxies have counted, by name of the route and target, and
// how many proxies have answered.
func countRequests(ctx context.Context, s *session.Session, proxies []lease.ProxyPresence) (sums map[string]uint64, answered int) {
	sums = map[string]uint64{}
	statuses, errs := s.Statuses(ctx, proxies)
	for i, st := range statuses {
		if errs[i] != nil {
			fmt.Fprintf(s.Out.Stderr, "proxy %s: %v\n", cmp.Or(proxies[i].Address, proxies[i].ID), errs[i])
			continue
		}
		answered++
		for _, r := range st.ModelRoutes {
			for _, t := range r.Targets {
				sums[r.Name+" "+t.Target] += t.Requests
			}
		}
	}
	if answered > 0 && answered < len(proxies) {
		fmt.Fprintf(s.Out.Stderr, "%d of %d proxies did not answer: REQUESTS lacks them\n", len(proxies)-answered, len(proxies))
	}
	return sums, answered
}

func removeCommand(s *session.Session) *cobra.Command {
	return s.Audits(s.Writes(&cobra.Command{
		Use: "rm NAME...", Aliases: []string{"remove"}, Short: "remove model routes", Args: cobra.MinimumNArgs(1),
		Long:    "rm removes model routes. Requests for the name get 404 again, unless an engine serves it.",
		Example: "  pdctl model rm chat --reason \"all clients use new\"",
		RunE: s.Wrap(func(cmd *cobra.Command, args []string) error {
			return s.With(cmd.Context(), func(conn *session.Conn) error {
				results := make([]session.Result, 0, len(args))
				for _, name := range args {
					r := session.Result{Role: schema.Models, Address: name, Outcome: "removed", Text: "removed"}
					var err error
					switch r.Revision, err = conn.Store.Documents.Delete(cmd.Context(), instance.Key{Role: schema.Models, Address: name}, s.Reason); {
					case err != nil:
						r = r.Failed("%w", err)
					case r.Revision == 0:
						r = r.Failed("there is no such model route; see pdctl model ls")
					}
					results = append(results, r)
					s.Line(r)
				}
				return s.Finish(results)
			})
		}),
	}))
}
