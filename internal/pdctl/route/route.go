// Package route implements pdctl route and pdctl ratio, which query a proxy.
package route

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/pdmesh/pdmesh/internal/cli"
	"github.com/pdmesh/pdmesh/internal/forward/explain"
	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/internal/pdctl/output"
	"github.com/pdmesh/pdmesh/internal/pdctl/session"
)

const routeHelp = `route shows where a proxy would send a request, and why: which instances could get it,
why the others could not, the scores of the policy, and how much of the prompt should be
cached. The proxy sends nothing to an engine and changes nothing.

For a model route, it names the target that the next such request would get, and the share
of the target by the weights. Repeated calls show different targets as requests arrive,
unless the session or the API key keeps the target (--sticky); "pdctl model ls" counts them.

--prompt is the text of a chat, with --model or any model. For another request, --explain
names the file with its body, or "-" for standard input. Every proxy chooses by its
own requests: --proxy names the proxy. Without it pdctl queries the first one in etcd, and
names it. It needs the proxies' admin key: --admin-key, or ADMIN_API_KEY.

The exit code is 1 when the request would be refused.`

// routeOptions are the flags of route.
type routeOptions struct{ body, prompt, model, endpoint, proxy, key, sessionHeader, session string }

// Command returns the command route.
func Command(s *session.Session) *cobra.Command {
	var o routeOptions
	cmd := &cobra.Command{
		Use: "route --prompt TEXT | --explain body.json", Short: "explain where a proxy would send a request", Long: routeHelp,
		Example: "  pdctl route --prompt \"What is a tensor?\"\n  pdctl route --explain body.json --proxy http://10.0.0.1:8000\n" +
			"  pdctl route --explain - --endpoint /v1/completions -o json < completion.json",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return requestPlan(cmd.Context(), s, cmd.InOrStdin(), &o) },
	}
	fs := cmd.Flags()
	fs.StringVar(&o.body, "explain", "", `file with the body of the request, "-" for standard input`)
	fs.StringVar(&o.prompt, "prompt", "", "text of a chat request, in place of --explain")
	fs.StringVar(&o.model, "model", "", "with --prompt: model of the request; empty: any")
	fs.StringVar(&o.endpoint, "endpoint", "/v1/chat/completions", "path of the request")
	fs.StringVar(&o.proxy, "proxy", "", "URL of the proxy, or of its --admin-listen if it has one (default: the first proxy in etcd)")
	fs.StringVar(&o.key, "admin-key", "", "admin key of the proxy; better set ADMIN_API_KEY")
	fs.StringVar(&o.session, "session", "", "session of the request")
	fs.StringVar(&o.sessionHeader, "session-header", "session-id", "header that names the session (the proxy's --client-bound-key)")
	return cmd
}

func requestPlan(ctx context.Context, s *session.Session, stdin io.Reader, o *routeOptions) error {
	if (o.body == "") == (o.prompt == "") || o.body != "" && o.model != "" {
		return cli.Wrongf(`use either --prompt TEXT, with --model if needed, or --explain with a file ("-": standard input)`)
	}
	var err error
	if o.key, err = s.AdminKey(o.key); err != nil {
		return err
	}
	var body []byte
	if o.body == "" {
		chat := map[string]any{"messages": []map[string]string{{"role": "user", "content": o.prompt}}}
		if o.model != "" {
			chat["model"] = o.model
		}
		body, err = json.Marshal(chat)
	} else {
		body, err = session.ReadFile(ctx, o.body, stdin)
	}
	if err != nil {
		return fmt.Errorf("--explain: %w", err)
	}
	if o.proxy == "" {
		urls, err := s.ProxyURLs(ctx)
		if len(urls) == 0 {
			return err
		}
		o.proxy = urls[0]
		fmt.Fprintf(s.Out.Stderr, "asked: %s, the first proxy in etcd\n", instance.Printable(o.proxy, 200))
	}
	answer, raw, err := askRoute(ctx, s, o, body)
	if err != nil {
		return err
	}
	if s.Out.Structured() {
		err = s.Out.WriteRaw(raw)
	} else {
		err = printPlan(s, answer)
	}
	if err == nil && answer.Way == explain.None {
		err = fmt.Errorf("the request would be refused: %s", instance.Printable(answer.Reason, 300))
	}
	return err
}

// askRoute sends the request to /route of the proxy.
func askRoute(ctx context.Context, s *session.Session, o *routeOptions, body []byte) (*explain.Plan, []byte, error) {
	header := http.Header{"X-Api-Key": {o.key}}
	if o.session != "" {
		header.Set(o.sessionHeader, o.session)
	}
	raw, err := s.AskProxy(ctx, o.proxy, "/route", url.Values{"endpoint": {o.endpoint}}, header, body)
	if err != nil {
		return nil, nil, err
	}
	answer := &explain.Plan{}
	if err := json.Unmarshal(raw, answer); err != nil || answer.Way == "" {
		return nil, nil, fmt.Errorf("%s does not answer as a proxy of this version: %s", instance.Printable(o.proxy, 200), instance.Printable(string(raw), 200))
	}
	return answer, raw, nil
}

func printPlan(s *session.Session, p *explain.Plan) error {
	name := func(s string) string { return instance.Printable(s, 200) }
	way := p.Way
	if p.Reason != "" {
		way += " (" + name(p.Reason) + ")"
	}
	model := name(p.Model)
	if p.Target != "" {
		model += ", target " + name(p.Target)
		if p.Share > 0 { // also 0 from a proxy of an older release
			model += fmt.Sprintf(" (%.3g %%)", 100*p.Share)
		}
	}
	s.Out.Printf("way       %s\nmodel     %s\nprompt    %d bytes, about %d tokens\nrevision  %d\n", way, model, p.Bytes, p.Tokens, p.Revision)
	if d := p.Disaggregate; d != nil {
		s.Out.Printf("decided   %s, %s: pair takes %.3f s, decode-only %.3f s, of which others wait %.3f s\n", name(d.Decision), name(d.Reason), d.Pair, d.DecodeOnly, d.Stall)
	}
	t := output.NewTable("ROLE", "ADDRESS", "", "OUT", "WEIGHT", "IN FLIGHT", "WAITING", "HELD", "OTHERS", "SCORES")
	for _, one := range []struct {
		role string
		leg  *explain.Leg
	}{{"prefill", p.Prefill}, {"decode", p.Decode}} {
		if one.leg == nil {
			continue
		}
		outcome := name(one.leg.Error)
		if one.leg.Chosen != "" {
			outcome = fmt.Sprintf("%s by %s, %d tokens cached", name(one.leg.Chosen), name(one.leg.Policy), one.leg.Cached)
		}
		if one.leg.Elsewhere != "" {
			outcome += ", elsewhere: " + name(one.leg.Elsewhere)
		}
		s.Out.Printf("%-8s  %s\n", one.role, outcome)
		for i := range one.leg.Candidates {
			c := &one.leg.Candidates[i]
			mark := ""
			if c.Chosen {
				mark = "*"
			}
			var scores []string
			for _, s := range c.Scores {
				scores = append(scores, name(s.Name)+"="+strconv.FormatFloat(s.Value, 'g', 5, 64))
			}
			t.AppendRow([]any{one.role, name(c.Address), mark, cmp.Or(name(c.Out), "-"), c.Weight, c.InFlight, c.Waiting, c.Held, c.Others, strings.Join(scores, " ")})
		}
	}
	return s.Out.Println("\n" + t.Render())
}
