// Package member implements the commands that change the membership: add, remove, allow, and
// restore and forget after a loss of etcd.
package member

import (
	"cmp"
	"context"
	"errors"
	"strings"

	"github.com/spf13/cobra"

	"github.com/pdmesh/pdmesh/internal/cli"
	"github.com/pdmesh/pdmesh/internal/discovery/store"
	"github.com/pdmesh/pdmesh/internal/discovery/verify"
	"github.com/pdmesh/pdmesh/internal/engine/vllm"
	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/internal/pdctl/output"
	"github.com/pdmesh/pdmesh/internal/pdctl/session"
)

const addHelp = `add writes static instances: they stay until they are removed.

pdctl first queries each address (GET /v1/models). With --model it must serve that model.
An address that does not answer is not added. These flags change that:

  --wait        an address that does not answer yet becomes a pending add in etcd:
                any running proxy adds it as soon as it answers. There is no time
                limit; --wait=10m gives up after ten minutes. (Write the "=":
                "--wait 10m" would be an address.)
  --wait --block
                the same, but return only when each was added or given up. Ctrl-C
                ends the command; the adds stay pending.
  --no-verify   add it at once, without a query. Proxies probe it before they use
                it, so no request goes to an address that does not answer.

"both" is for an engine that serves in both roles (kv_role kv_both): it writes two
instances in one transaction.

A decode engine with LMCache's PD backend needs its ports in the record:
--lmcache-init-port and --lmcache-alloc-port, as in its pd_peer_init_port and
pd_peer_alloc_port, one of each for every rank.

An instance that already exists is not changed (exit 1 if its record is rejected). Adding
an instance that was removed undoes the removal and writes a static instance;
"pdctl allow" undoes the removal for the instance's agent. With an invalid address
nothing is added (exit 2). Otherwise every address is tried, and the exit code is 1 if
one failed.`

const addExamples = `  pdctl add prefill 10.0.0.7:8100
  pdctl add decode 10.0.0.8:8200 10.0.0.9:8200 --model Qwen/Qwen2.5-7B-Instruct
  pdctl add decode [fd00::7]:8200 --connector nixl --reason "third rack"
  pdctl add decode 10.0.0.8:8200 --dp-size 4
  pdctl add both 10.0.0.6:8100 --connector nixl
  pdctl add decode 10.0.0.8:8200 --connector lmcache --lmcache-init-port 7300 --lmcache-alloc-port 7400
  pdctl add prefill 10.0.0.7:8100 --wait            # still loading its weights
  pdctl add prefill 10.0.0.7:8100 --wait=10m --block`

// Add returns the command add.
func Add(s *session.Session) *cobra.Command {
	var f addFlags
	cmd := &cobra.Command{
		Use: "add ROLE/HOST:PORT...", Short: "add static instances", Long: addHelp, Example: addExamples,
		Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			keys, err := s.Named(cmd.Context(), args, session.BothRoles|session.Fresh)
			if err != nil {
				if f.wait == forever && errors.Is(err, instance.ErrAddress) {
					return cli.Wrongf("%w (a limit of --wait is written --wait=10m)", err)
				}
				return err
			}
			if err := f.check(s, keys); err != nil {
				return err
			}
			return add(cmd.Context(), s, keys, &f)
		},
	}
	f.register(cmd.Flags(), &s.Engines)
	return cmd
}

// adder adds instances, one after the other.
type adder struct {
	*session.Session
	conn   *session.Conn
	client *vllm.Client
	flags  *addFlags
}

func add(ctx context.Context, s *session.Session, keys []instance.Key, f *addFlags) error {
	client, err := s.Engines.Client()
	if err != nil {
		return err
	}
	conn, err := s.Connect(ctx)
	if err != nil {
		return err
	}
	defer conn.Close()
	client.Timeout = s.Timeout
	a := adder{s, conn, client, f}
	var results []session.Result
	waiting := make(map[instance.Key]bool)
	for _, k := range keys {
		r := a.one(ctx, k)
		for _, one := range k.Each() {
			r := r
			if r.Role = one.Role; r.Outcome == "already" {
				r = a.already(ctx, r)
			}
			if r.Outcome == "waiting" {
				waiting[one], r.Interim = true, f.block
			}
			results = append(results, r)
			s.Line(r)
		}
	}
	if len(waiting) > 0 {
		a.warnWithoutProxy(ctx)
	}
	if f.block && len(waiting) > 0 {
		var settled map[instance.Key]session.Result
		settled, err = a.block(ctx, waiting)
		for i, r := range results {
			if now, ok := settled[instance.Key{Role: r.Role, Address: r.Address}]; ok {
				results[i] = now
			}
		}
	}
	return cmp.Or(err, s.Finish(results))
}

// one adds an address, or both of its roles for "both".
func (a *adder) one(ctx context.Context, k instance.Key) session.Result {
	f := a.flags
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
		facts, err := a.client.Probe(ctx, &instance.Instance{Key: k, Record: rec})
		switch {
		case err == nil && !facts.Serves(f.model, f.strict):
			return r.Failed("serves %s, not %s: start it with that model, or leave out --model",
				instance.Printable(strings.Join(facts.Models, ", "), 200), instance.Printable(f.model, 128))
		case err != nil && f.wait != "" && mayComeUp(err):
			return a.pending(ctx, k, rec, err)
		case err != nil && mayComeUp(err):
			return r.Failed("%w; start it, or use --wait to add it when it answers", err)
		case err != nil:
			return r.Failed("%w", err)
		}
		facts.DPSize = f.ranks // without --dp-size, proxies find the number themselves
		rec = verify.WithFacts(rec, facts)
	}
	outcome, err := a.conn.Store.Instances.Add(ctx, k, rec, f.reason)
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
		r.Text = "added without verification; proxies use it when it answers"
	}
	return r
}

// mayComeUp reports whether it helps to wait after an error. An engine that is unreachable or
// not ready may start; a wrong API key or the address of a proxy is a permanent error.
func mayComeUp(err error) bool {
	if status, ok := errors.AsType[*vllm.StatusError](err); ok {
		return status.Code >= 500
	}
	return !errors.Is(err, vllm.ErrBase) && !errors.Is(err, vllm.ErrProxy)
}

// already returns the result for an instance that is registered. If it cannot be used, the result
// is a failure, because an operator adds an instance in order to serve with it.
func (a *adder) already(ctx context.Context, r session.Result) session.Result {
	r.Outcome, r.Text = "already", "already exists; not changed"
	snap, err := a.conn.Store.Reader.Snapshot(ctx)
	if err != nil {
		return r
	}
	in, ok := snap.Lookup(instance.Key{Role: r.Role, Address: r.Address})
	switch {
	case !ok:
	case in.View == instance.Rejected:
		return r.Failed("already exists, but is rejected: %s; remove it with pdctl remove, then add it", instance.Printable(in.Reason, 300))
	case in.Status() != string(instance.Ready):
		r.Text = "already exists (" + in.Status() + "); not changed"
	}
	return r
}
