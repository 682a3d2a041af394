package diagnose

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/pdmesh/pdmesh/internal/agent/agentctl"
	"github.com/pdmesh/pdmesh/internal/cli"
	"github.com/pdmesh/pdmesh/internal/cli/sleep"
	"github.com/pdmesh/pdmesh/internal/discovery/access"
	"github.com/pdmesh/pdmesh/internal/discovery/etcd"
	"github.com/pdmesh/pdmesh/internal/discovery/lease"
	"github.com/pdmesh/pdmesh/internal/discovery/loaddigest"
	"github.com/pdmesh/pdmesh/internal/discovery/schema"
	"github.com/pdmesh/pdmesh/internal/engine/vllm"
	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/internal/observe/doctor"
	"github.com/pdmesh/pdmesh/internal/pdctl/session"
	"github.com/pdmesh/pdmesh/internal/transport/certs"
)

const (
	// recheckTime is how long a proxy that seems to lag is polled: longer than the interval
	// of its load digests.
	recheckTime = loaddigest.Refresh + 2*time.Second
	// staleAfter is the age from which a digest is read again. The age is measured by the clocks of
	// two machines, so a digest that is as far in the future is read again, too.
	staleAfter = loaddigest.Refresh + time.Second
	// recheckPoll is the interval between two reads of a proxy that seems to lag.
	recheckPoll = 200 * time.Millisecond
	// probesAtOnce bounds the engines, and the agents of this machine, that are queried at the same time.
	probesAtOnce = 16
)

// gather collects the input of doctor. If etcd cannot be read, the picture has the error, too. The
// picture is nil if a setting is wrong.
func gather(ctx context.Context, s *session.Session, o *doctorOptions) (*doctor.Picture, error) {
	p := &doctor.Picture{Now: time.Now(), Reach: reach(s), Etcd: doctor.Etcd{Root: s.Etcd.Layout.Root()}}
	source, err := s.Etcd.TLS.Open(nil)
	if err != nil {
		return nil, cli.Wrong(err)
	}
	if source != nil {
		p.Certificates = append(p.Certificates, source.Status())
	}
	if !s.Engines.Files.None() {
		engines, err := certs.Open(certs.Options{Use: certs.UseEngines, Files: s.Engines.Files})
		if err != nil {
			return nil, cli.Wrongf("certificates for engines: %w", err)
		}
		p.Certificates = append(p.Certificates, engines.Status())
	}
	if o.agents {
		p.Agents = localAgents(ctx, s)
	}
	conn, err := s.Connect(ctx)
	if cli.IsWrong(err) {
		return nil, err
	}
	if err == nil {
		defer conn.Close()
		p.Members.Snapshot, _, err = conn.Store.Reader.List(ctx)
		err = s.Hint(err)
	}
	if err != nil {
		p.Etcd.Refused = &doctor.Refused{Auth: session.RefusedUser(err), Text: session.WithoutHint(err)}
		return p, err
	}
	// Suggested commands have the user only if etcd accepts it.
	if s.Etcd.Username != "" {
		p.Reach.Pdctl = append(p.Reach.Pdctl, "--etcd-username", s.Etcd.Username)
	}
	if s.Etcd.PasswordFile != "" {
		p.Reach.Pdctl = append(p.Reach.Pdctl, "--etcd-password-file", s.Etcd.PasswordFile)
	}
	p.Etcd.Revision = p.Members.Snapshot.Revision
	gatherEtcd(ctx, s, conn, p)
	if err := gatherProxies(ctx, conn, p); err != nil {
		p.Unseen = append(p.Unseen, doctor.Unseen{What: "proxies", Why: err.Error()})
	}
	gatherPaces(ctx, s, p)
	if p.Agents.Remote, err = conn.Store.Reader.RefusedAgents(ctx); err != nil {
		p.Unseen = append(p.Unseen, doctor.Unseen{What: "agents that are refused", Why: err.Error()})
		err = nil
	}
	if o.probe {
		err = gatherEngines(ctx, s, o, p)
	}
	return p, err
}

// reach returns the flags with which suggested commands reach this etcd and the proxies, without the
// user of pdctl and the password.
func reach(s *session.Session) doctor.Reach {
	secure := s.Etcd.TLS
	list := strings.Join(access.Written(s.Etcd.Endpoints, secure.Used()), ",")
	r := doctor.Reach{Pdctl: []string{"--etcd-endpoints", list}, Etcdctl: []string{"--endpoints", list}}
	if s.Etcd.Prefix != schema.DefaultPrefix {
		r.Pdctl = append(r.Pdctl, "--etcd-prefix", s.Etcd.Prefix)
	}
	for _, f := range []struct{ value, pdctl, etcdctl string }{
		{secure.Files.CA, "--etcd-ca", "--cacert"}, {secure.Files.Cert, "--etcd-cert", "--cert"}, {secure.Files.Key, "--etcd-key", "--key"},
		{s.Proxies.Files.CA, "--proxy-ca", ""}, {s.Proxies.Files.Cert, "--proxy-cert", ""}, {s.Proxies.Files.Key, "--proxy-key", ""},
	} {
		if f.value != "" {
			r.Pdctl = append(r.Pdctl, f.pdctl, f.value)
		}
		if f.value != "" && f.etcdctl != "" {
			r.Etcdctl = append(r.Etcdctl, f.etcdctl, f.value)
		}
	}
	if s.Etcd.Username != "" {
		r.Etcdctl = append(r.Etcdctl, "--user", "root") // etcdctl asks for the password
	}
	return r
}

// localAgents returns the agents of this machine. One of an older release does not report which etcd it
// uses.
func localAgents(ctx context.Context, s *session.Session) (out doctor.Agents) {
	getenv := func(name string) string { v, _ := s.LookupEnv(name); return v }
	paths := agentctl.All(getenv)
	reports, errs := make([]agentctl.Report, len(paths)), make([]error, len(paths))
	var g errgroup.Group
	g.SetLimit(probesAtOnce)
	for i, path := range paths {
		g.Go(func() error {
			reports[i], errs[i] = agentctl.NewClient(path).Status(ctx)
			return nil
		})
	}
	_ = g.Wait()
	for i, r := range reports {
		ours := func(endpoint string) bool { return slices.Contains(s.Etcd.Endpoints, endpoint) }
		switch {
		case errs[i] != nil && !errors.Is(errs[i], agentctl.ErrNoAgent):
			out.Silent = append(out.Silent, doctor.Unseen{What: paths[i], Why: errs[i].Error()})
		case errs[i] != nil, r.ZMQRegister != "":
		case r.EtcdPrefix != "" && (strings.Trim(r.EtcdPrefix, "/") != strings.Trim(s.Etcd.Prefix, "/") || !slices.ContainsFunc(r.Etcd, ours)):
			out.Elsewhere = append(out.Elsewhere, r)
		default:
			out.Here = append(out.Here, r)
		}
	}
	return out
}

func gatherEtcd(ctx context.Context, s *session.Session, conn *session.Conn, p *doctor.Picture) {
	for _, e := range conn.Client.Endpoints() {
		r := doctor.Endpoint{Address: e}
		cctx, cancel := context.WithTimeout(ctx, min(s.Timeout, 2*time.Second))
		st, err := conn.Client.Status(cctx, e)
		cancel()
		if err != nil {
			r.Error = instance.Printable(err.Error(), 200)
		} else {
			r.Size, r.Quota, r.Leader, r.Problems = st.DbSize, st.DbSizeQuota, st.Leader != 0, st.Errors
		}
		p.Etcd.Endpoints = append(p.Etcd.Endpoints, r)
	}
	cctx, cancel := context.WithTimeout(ctx, s.Timeout)
	defer cancel()
	alarms, err := conn.Client.AlarmList(cctx)
	if err != nil {
		p.Unseen = append(p.Unseen, doctor.Unseen{What: "etcd's alarms", Why: err.Error()})
	} else {
		for _, al := range alarms.Alarms {
			p.Etcd.Alarms = append(p.Etcd.Alarms, doctor.Alarm{Name: al.Alarm.String(), Member: fmt.Sprintf("%x", al.MemberID)})
		}
	}
	schema, err := conn.Client.Get(cctx, conn.Layout.Schema())
	if err != nil {
		p.Unseen = append(p.Unseen, doctor.Unseen{What: conn.Layout.Schema(), Why: err.Error()})
		return
	}
	p.Etcd.SchemaErr = etcd.CheckSchema(conn.Layout, etcd.Single(schema.Kvs))
}

// gatherProxies reads the state of the proxies, and polls those that seem to lag.
func gatherProxies(ctx context.Context, conn *session.Conn, p *doctor.Picture) error {
	instances, documents, err := conn.Store.Reader.Newest(ctx)
	if err != nil {
		return err
	}
	start := time.Now()
	first := map[string]*loaddigest.ProxyLoad{}
	for {
		proxies, err := conn.Store.Reader.Proxies(ctx)
		if err != nil {
			return err
		}
		list, err := conn.Store.Reader.Loads(ctx)
		if err != nil {
			return err
		}
		loads := map[string]*loaddigest.ProxyLoad{}
		for _, l := range list {
			loads[l.ID] = l
			if first[l.ID] == nil {
				first[l.ID] = l
			}
		}
		lags := false
		p.Proxies = p.Proxies[:0]
		for _, x := range proxies {
			y := doctor.Proxy{ProxyPresence: x, Load: loads[x.ID], Watched: time.Since(start)}
			lag := x.Applied < max(instances, documents)
			switch {
			case x.Documents == nil && x.Applied >= instances && x.Applied != documents:
				y.Older = documents
			case lag:
				y.Behind = max(instances, documents)
			}
			y.Silent = sameDigest(first[x.ID], y.Load) && isStale(y.Load)
			lags = lags || lag || y.Silent
			p.Proxies = append(p.Proxies, y)
		}
		if !lags || time.Since(start) >= recheckTime {
			return nil
		}
		if !sleep.For(ctx, recheckPoll) {
			return ctx.Err()
		}
	}
}

// gatherPaces reads from the proxies how fast instances are, if there are enough to compare. An
// unreachable proxy is not a problem of the fleet, but its measurements are missing.
func gatherPaces(ctx context.Context, s *session.Session, p *doctor.Picture) {
	snap := p.Members.Snapshot
	if max(len(snap.Usable(instance.Prefill)), len(snap.Usable(instance.Decode))) < 3 {
		return
	}
	var proxies []lease.ProxyPresence
	for i := range p.Proxies {
		proxies = append(proxies, p.Proxies[i].ProxyPresence)
	}
	p.Members.Paces = map[instance.Key]instance.ListedPace{}
	statuses, errs := s.Statuses(ctx, proxies)
	var failed []error
	for i, st := range statuses {
		if errs[i] != nil {
			failed = append(failed, errs[i])
			continue
		}
		for _, l := range st.Instances {
			if k := (instance.Key{Role: l.Role, Address: l.Address}); l.Load != nil {
				p.Members.Paces[k] = p.Members.Paces[k].Plus(l.Load.Pace)
			}
		}
	}
	if len(failed) > 0 {
		p.Unseen = append(p.Unseen, doctor.Unseen{
			What: "how fast instances are",
			Why:  fmt.Sprintf("%d of %d proxies did not return their /status: %s", len(failed), len(proxies), instance.Printable(failed[0].Error(), 200)),
			Cure: "run doctor where it reaches the admin_url of the proxies; for proxies with https, set --proxy-ca",
		})
	}
}

// sameDigest reports whether two reads returned the same digest of a proxy.
func sameDigest(a, b *loaddigest.ProxyLoad) bool {
	return a != nil && b != nil && a.At != nil && b.At != nil && a.At.Equal(*b.At)
}

// isStale reports whether a digest should have been renewed by now.
func isStale(l *loaddigest.ProxyLoad) bool {
	return l.Ignored == "" && len(l.Load) > 0 && time.Since(*l.At).Abs() > staleAfter
}

// gatherEngines probes the engines from this machine, at most probesAtOnce at a time.
func gatherEngines(ctx context.Context, s *session.Session, o *doctorOptions, p *doctor.Picture) error {
	client, err := s.Engines.Client()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, 10*s.Timeout)
	defer cancel()
	var asked []*instance.Instance
	seen := map[string]bool{}
	for _, in := range p.Members.Snapshot.All() {
		if in.View != instance.Rejected && in.View != instance.Pending && in.Intent != instance.Removed && !seen[in.Address] {
			seen[in.Address] = true
			asked = append(asked, in)
		}
	}
	if n := len(asked) - o.most; n > 0 {
		p.Unseen = append(p.Unseen, doctor.Unseen{What: "engines", Why: fmt.Sprintf("%d of %d were not asked", n, len(asked)), Cure: "set a higher --probe-most"})
		asked = asked[:o.most]
	}
	p.Members.Probes, p.Members.Models = map[instance.Key]error{}, map[instance.Key]instance.Facts{}
	var mu sync.Mutex // guards the results
	var g errgroup.Group
	g.SetLimit(probesAtOnce)
	for _, in := range asked {
		g.Go(func() error {
			one, cancel := context.WithTimeout(ctx, s.Timeout)
			defer cancel()
			base := vllm.BaseURL(in)
			err := client.Health(one, base)
			var facts instance.Facts
			known := false
			if err == nil && len(in.Record.Models) > 0 {
				f, err := client.Models(one, base)
				facts, known = f, err == nil
			}
			if err != nil && ctx.Err() != nil {
				return nil // cut short, not unhealthy
			}
			mu.Lock()
			defer mu.Unlock()
			p.Members.Probes[in.Key] = err
			if known {
				p.Members.Models[in.Key] = facts
			}
			return nil
		})
	}
	_ = g.Wait()
	if ctx.Err() != nil {
		p.Unseen = append(p.Unseen, doctor.Unseen{What: "engines", Why: "not all were probed in time", Cure: "set a longer --timeout"})
	}
	return nil
}
