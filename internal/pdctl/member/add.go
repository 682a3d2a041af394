// Package member has the commands that decide which instances there are: add, remove,
// allow, and restore and forget after a loss of etcd.
package member

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/pdmesh/pdmesh/internal/cli"
	"github.com/pdmesh/pdmesh/internal/connector"
	"github.com/pdmesh/pdmesh/internal/discovery/etcd"
	"github.com/pdmesh/pdmesh/internal/discovery/schema"
	"github.com/pdmesh/pdmesh/internal/discovery/store"
	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/internal/lmcache"
	"github.com/pdmesh/pdmesh/internal/pdctl/output"
	"github.com/pdmesh/pdmesh/internal/pdctl/session"
	"github.com/pdmesh/pdmesh/internal/vllm"
)

const addHelp = `add puts static instances: they stay until somebody removes them.

Each address is asked first, at /v1/models, and with --model must serve that
model; what does not answer is not added. Two flags change that:

  --wait        what does not answer yet is left in etcd as a pending add, and
                "Waiting for ..." is printed: any running proxy adds it as soon
                as it answers. It waits without limit; --wait=10m gives up after
                ten minutes. (Write the "=": "--wait 10m" would be an address.)
  --wait --block
                the same, but return only when each was added, or is no longer
                waited for. Ctrl-C ends the blocking, not the waiting.
  --no-verify   do not ask: add it at once. Proxies use it only after a probe of
                their own, so nothing is sent to a machine that is not there.

"both" is for an engine that stands in either role (kv_role kv_both): two
instances, in one transaction.

A decode engine with LMCache's PD backend needs its ports in the record:
--lmcache-init-port and --lmcache-alloc-port, as in its pd_peer_init_port and
pd_peer_alloc_port, one of each for every rank.

An instance that is there already is left as it is (exit 1 if it is there but
rejected). Adding one that was removed lifts the removal and puts a static
instance in its place; "pdctl allow" lifts it for the agent that ran there. An
address that is not well formed is wrong usage (exit 2) and nothing is added;
otherwise every address is tried, each gets a line, and the exit code is 1 if
any failed.`

const addExamples = `  pdctl add prefill 10.0.0.7:8100
  pdctl add decode 10.0.0.8:8200 10.0.0.9:8200 --model Qwen/Qwen2.5-7B-Instruct
  pdctl add decode [fd00::7]:8200 --connector nixl --reason "third rack"
  pdctl add decode 10.0.0.8:8200 --dp-size 4
  pdctl add both 10.0.0.6:8100 --connector nixl
  pdctl add decode 10.0.0.8:8200 --connector lmcache --lmcache-init-port 7300 --lmcache-alloc-port 7400
  pdctl add prefill 10.0.0.7:8100 --wait            # still loading its weights
  pdctl add prefill 10.0.0.7:8100 --wait=10m --block`

// forever is --wait without a value.
const forever = "forever"

// blockPoll is how often a blocked add looks.
const blockPoll = 500 * time.Millisecond

type addFlags struct {
	model, connector, reason, apiKey     string
	wait                                 string
	block, noVerify, https, strict, loop bool

	init, alloc, host string // of LMCache's PD backend

	engine session.Engines
	ranks  int // data-parallel ones

	limit time.Duration    // of --wait; 0 for none
	ports map[string][]int // of LMCache
}

// Add makes the command add.
func Add(s *session.Session) *cobra.Command {
	var f addFlags
	cmd := &cobra.Command{
		Use: "add prefill|decode|both host:port...", Short: "add static instances", Long: addHelp, Example: addExamples,
		Args: cobra.MinimumNArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			role, err := instance.ParseRoles(args[0])
			if err != nil {
				return cli.Wrong(err)
			}
			keys, err := session.Addresses(role, args[1:])
			if err != nil {
				if f.wait == forever && errors.Is(err, instance.ErrAddress) {
					return cli.Wrongf("%w (a limit of --wait is written --wait=10m)", err)
				}
				return err
			}
			if err := checkAdd(s, &f, keys); err != nil {
				return err
			}
			return add(cmd.Context(), s, keys, f)
		},
	}
	fs := cmd.Flags()
	fs.SortFlags = false
	fs.StringVar(&f.model, "model", "", "add only what serves this model (any id or root; the last path component is enough)")
	fs.BoolVar(&f.strict, "strict-model", false, "the whole name must match")
	fs.StringVar(&f.connector, "connector", "", "KV-transfer dialect: "+strings.Join(connector.Names(), ", ")+", or the name of vLLM's class; empty leaves it to the proxies")
	fs.IntVar(&f.ranks, "dp-size", 0, "data-parallel ranks behind the address, each of which is picked for itself (vllm serve --data-parallel-size); 0: what proxies find")
	fs.StringVar(&f.init, "lmcache-init-port", "", "pd_peer_init_port of a decode engine with LMCache's PD backend, one port for each rank, comma separated")
	fs.StringVar(&f.alloc, "lmcache-alloc-port", "", "its pd_peer_alloc_port, likewise")
	fs.StringVar(&f.host, "lmcache-host", "", "host by which prefill engines reach these ports (default: that of the address)")
	fs.StringVar(&f.wait, "wait", "", "leave what does not answer yet as a pending add; `--wait=10m` limits it")
	fs.Lookup("wait").NoOptDefVal = forever // "--wait" alone
	fs.BoolVar(&f.block, "block", false, "with --wait: return when added")
	fs.BoolVar(&f.noVerify, "no-verify", false, "do not ask the instance; proxies will")
	fs.BoolVar(&f.https, "https", false, "the instances speak HTTPS")
	f.engine.Register(fs)
	fs.StringVar(&f.reason, "reason", "", "why, for the audit trail")
	fs.StringVar(&f.apiKey, "engine-api-key", "", "key of the engines; better given as PD_ENGINE_API_KEY or OPENAI_API_KEY")
	fs.BoolVar(&f.loop, "allow-loopback", false, "add a loopback address although etcd is on another machine")
	return cmd
}

func checkAdd(s *session.Session, f *addFlags, keys []instance.Key) error {
	switch {
	case f.noVerify && f.wait != "":
		return cli.Wrongf("--no-verify and --wait exclude each other: one adds at once, the other when it answers")
	case f.noVerify && f.model != "":
		return cli.Wrongf("--model cannot be checked with --no-verify")
	case f.strict && f.wait != "":
		return cli.Wrongf("--strict-model cannot wait: the proxy that adds it later compares as usual")
	case f.block && s.Dry.On:
		return cli.Wrongf("--dry-run and --block exclude each other: nothing is added that could be waited for")
	case f.block && f.wait == "":
		return cli.Wrongf("--block needs --wait")
	}
	if f.ranks < 0 || f.ranks > instance.MaxRanks {
		return cli.Wrongf("--dp-size %d: give the number of data-parallel ranks, 1 to %d", f.ranks, instance.MaxRanks)
	}
	dialect, err := connector.Canonical(f.connector)
	if err != nil {
		return cli.Wrongf("--connector: %w", err)
	}
	if err := f.readPorts(dialect, keys[0].Role); err != nil {
		return err
	}
	if f.wait != "" && f.wait != forever {
		d, err := time.ParseDuration(f.wait)
		if err != nil || d < time.Second {
			return cli.Wrongf("--wait=%s: write a duration of at least a second, e.g. --wait=10m", instance.Printable(f.wait, 40))
		}
		f.limit = d
	}
	for _, k := range keys {
		if instance.IsLoopback(k.Address) && !s.Etcd.Local() && !f.loop {
			return cli.Wrongf("%s is a loopback address, but etcd is on another machine, whose proxies would look for it on their own: give the address others reach it by, or --allow-loopback", k.Address)
		}
	}
	return nil
}

// readPorts reads where prefill instances reach the ranks of an LMCache decode engine.
func (f *addFlags) readPorts(dialect string, role instance.Role) error {
	given := f.init+f.alloc+f.host != ""
	switch {
	case given && (dialect != lmcacheDialect || role == instance.Prefill):
		return cli.Wrongf("--lmcache-init-port, --lmcache-alloc-port and --lmcache-host are for decode instances with --connector %s", lmcacheDialect)
	case dialect != lmcacheDialect || role == instance.Prefill:
		return nil
	}
	lists := make([][]int, 2)
	for i, flag := range []struct{ name, value string }{{"lmcache-init-port", f.init}, {"lmcache-alloc-port", f.alloc}} {
		list, err := lmcache.Ports(flag.value)
		if err != nil {
			return cli.Wrongf("--%s: %w", flag.name, err)
		}
		if list == nil {
			return cli.Wrongf("--%s is missing: give the ports of LMCache's pd_peer_init_port and pd_peer_alloc_port, one of each for every rank; without them no prefill instance can send", flag.name)
		}
		lists[i] = list
	}
	if len(lists[0]) != len(lists[1]) {
		return cli.Wrongf("%d ports in --lmcache-init-port and %d in --lmcache-alloc-port: give one of each for every rank", len(lists[0]), len(lists[1]))
	}
	f.ports = map[string][]int{instance.PortLMCacheInit: lists[0], instance.PortLMCacheAlloc: lists[1]}
	return nil
}

// lmcacheDialect is the one of LMCache's PD backend.
const lmcacheDialect = "lmcache"

func add(ctx context.Context, s *session.Session, keys []instance.Key, f addFlags) error {
	client, err := f.engine.Client(f.apiKey)
	if err != nil {
		return err
	}
	conn, err := s.Connect(ctx)
	if err != nil {
		return err
	}
	defer conn.Close()
	client.Timeout = s.Timeout
	var results []session.Result
	waiting := make(map[instance.Key]bool)
	for _, k := range keys {
		r := addOne(ctx, s, conn, client, k, f)
		for _, one := range k.Each() {
			r := r
			if r.Role = one.Role; r.Outcome == "already" {
				r = already(ctx, conn, r)
			}
			if r.Outcome == "waiting" {
				waiting[one] = true
			}
			results = append(results, r)
			s.Line(r)
		}
	}
	if len(waiting) > 0 {
		warnWithoutProxy(ctx, s, conn)
	}
	if f.block && len(waiting) > 0 {
		settled, err := block(ctx, s, conn, waiting)
		if err != nil {
			return err
		}
		for i, r := range results {
			if now, ok := settled[instance.Key{Role: r.Role, Address: r.Address}]; ok {
				results[i] = now
			}
		}
	}
	return s.Finish(results)
}

func addOne(ctx context.Context, s *session.Session, conn *session.Conn, client *vllm.Client, k instance.Key, f addFlags) session.Result {
	r := session.Result{Role: k.Role, Address: k.Address}
	rec := instance.Record{
		V: instance.RecordVersion, Address: k.Address, Connector: f.connector,
		State: instance.Ready, Source: "admin", Ports: f.ports, ReceiverHost: f.host, DPSize: f.ranks,
	}
	if k.Role == instance.Both {
		rec.KVRole = "kv_both"
	}
	if f.https {
		rec.Scheme = "https"
	}
	if !f.noVerify {
		facts, err := client.Probe(ctx, &instance.Instance{Key: k, Record: rec})
		switch {
		case err == nil && !facts.Serves(f.model, f.strict):
			return r.Failed("serves %s, not %s: start it with that model, or leave out --model",
				instance.Printable(strings.Join(facts.Models, ", "), 200), instance.Printable(f.model, 128))
		case err != nil && f.wait != "" && mayComeUp(err):
			return addPending(ctx, s, conn, k, rec, f, err)
		case err != nil:
			return r.Failed("%w%s", err, advice(err))
		}
		rec.Models, rec.MaxModelLen, rec.Version = facts.Models, facts.MaxModelLen, facts.Version
		rec.Transfer = facts.Transfer
		if !facts.StartedAt.IsZero() {
			rec.StartedAt = &facts.StartedAt
		}
	}
	outcome, err := conn.Store.Instances.Add(ctx, k, rec, f.reason)
	if err != nil {
		return r.Failed("%w", err)
	}
	for _, m := range rec.Models {
		r.Models = append(r.Models, instance.Printable(m, 256))
	}
	if outcome == store.AlreadyThere {
		r.Outcome = "already"
		return r
	}
	r.Outcome, r.Text = "added", "added, serves "+output.ShortModels(r.Models)
	if f.noVerify {
		r.Text = "added unverified; proxies use it when it answers them"
	}
	return r
}

// mayComeUp tells what waiting can cure: an engine that is not there yet or
// not ready. It does not make a wrong key right, or a proxy an engine.
func mayComeUp(err error) bool {
	if status, ok := errors.AsType[*vllm.StatusError](err); ok {
		return status.Code >= 500
	}
	return !errors.Is(err, vllm.ErrBase) && !errors.Is(err, vllm.ErrProxy)
}

func advice(err error) string {
	if !mayComeUp(err) {
		return ""
	}
	return "; start it, or use --wait to have it added when it answers"
}

func addPending(ctx context.Context, s *session.Session, conn *session.Conn, k instance.Key, rec instance.Record, f addFlags, why error) session.Result {
	r := session.Result{Role: k.Role, Address: k.Address}
	p := schema.PendingAdd{Model: f.model, Connector: f.connector, Record: &rec}
	outcome, err := conn.Store.Instances.AddPending(ctx, k, p, f.limit, f.reason)
	if err != nil {
		return r.Failed("%w", err)
	}
	if outcome == store.Waiting {
		r.Outcome, r.Text = "waiting", why.Error()
		if f.limit > 0 {
			r.Text += fmt.Sprintf(" (for %s)", f.limit)
		}
		return r
	}
	r.Outcome = "already"
	return r
}

// already tells that an entry was there. One that cannot be used is a failure:
// whoever adds wants an instance that serves.
func already(ctx context.Context, conn *session.Conn, r session.Result) session.Result {
	r.Outcome, r.Text = "already", "is there already; left as it is"
	snap, err := conn.Store.Reader.Snapshot(ctx)
	if err != nil {
		return r
	}
	in, ok := snap.Lookup(instance.Key{Role: r.Role, Address: r.Address})
	switch {
	case !ok:
	case in.View == instance.Rejected:
		return r.Failed("is there already, but rejected: %s; take it out with pdctl remove, then add it", instance.Printable(in.Reason, 300))
	case output.Effective(in) != string(instance.Ready):
		r.Text = "is there already (" + output.Effective(in) + "); left as it is"
	}
	return r
}

// warnWithoutProxy says so when nobody is there to do the adding.
func warnWithoutProxy(ctx context.Context, s *session.Session, conn *session.Conn) {
	if proxies, err := conn.Store.Reader.Proxies(ctx); err == nil && len(proxies) == 0 {
		fmt.Fprintln(s.Out.Stderr, "Note: no proxy is running at this etcd; the first one that starts will add what is waiting.")
	}
}

// block looks at the pending adds until none is left, prints what became of
// each and returns it.
func block(ctx context.Context, s *session.Session, conn *session.Conn, waiting map[instance.Key]bool) (map[instance.Key]session.Result, error) {
	settled := make(map[instance.Key]session.Result)
	tick := time.NewTicker(blockPoll)
	defer tick.Stop()
	for len(waiting) > 0 {
		select {
		case <-ctx.Done():
			return nil, errors.New("interrupted; the pending adds stay (pdctl remove takes them back)")
		case <-tick.C:
		}
		snap, err := conn.Store.Reader.Snapshot(ctx)
		if err != nil {
			if errors.Is(err, etcd.ErrUnreachable) {
				continue // it waits for the instance; it can wait for etcd
			}
			return nil, err
		}
		pending := make(map[instance.Key]bool)
		for _, in := range snap.All() {
			if in.View == instance.Pending {
				pending[in.Key] = true
			}
		}
		for k := range waiting {
			in, there := snap.Lookup(k)
			r := session.Result{Role: k.Role, Address: k.Address}
			switch {
			case there && in.View != instance.Rejected && in.Intent != instance.Removed:
				r.Outcome, r.Text, r.Models = "added", "added", in.List().Models
			case pending[k]:
				continue
			default:
				r = r.Failed("no longer waited for: its time was up, or somebody removed it")
			}
			settled[k] = r
			delete(waiting, k)
			s.Line(r)
		}
	}
	return settled, nil
}
