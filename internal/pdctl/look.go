package pdctl

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"golang.org/x/sync/errgroup"

	"github.com/pdmesh/pdmesh/internal/agentctl"
	"github.com/pdmesh/pdmesh/internal/certs"
	"github.com/pdmesh/pdmesh/internal/cli"
	"github.com/pdmesh/pdmesh/internal/discovery/etcd"
	"github.com/pdmesh/pdmesh/internal/discovery/lease"
	"github.com/pdmesh/pdmesh/internal/discovery/schema"
	"github.com/pdmesh/pdmesh/internal/doctor"
	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/internal/vllm"
)

const (
	// lookAgain is how long a proxy that seems to lag has to show that it does not: longer
	// than a proxy takes from one load digest to the next.
	lookAgain = lease.RefreshLoad + 2*time.Second
	// oldDigest is the age, by two clocks, from which on a digest is looked at again.
	oldDigest = lease.RefreshLoad + time.Second
	// probesAtOnce bounds the engines that are asked at a time.
	probesAtOnce = 16
)

// look gathers what doctor examines. The error is why etcd could not be asked; then
// the picture, if there is one, has the reason. No picture means wrong usage.
func (a *app) look(ctx context.Context, o *doctorOptions) (*doctor.Picture, error) {
	layout, err := schema.NewLayout(a.prefix)
	if err != nil {
		return nil, cli.Wrong(err)
	}
	p := &doctor.Picture{Now: time.Now(), Root: layout.Root(), Reach: a.reach()}
	source, err := a.access.etcd.Open(nil)
	if err != nil {
		return nil, cli.Wrong(err)
	}
	if source != nil {
		p.Certificates = append(p.Certificates, source.Status())
	}
	if !o.engines.files.None() {
		engines, err := certs.Open(certs.Options{Use: certs.UseEngines, Files: o.engines.files})
		if err != nil {
			return nil, cli.Wrongf("certificates for engines: %w", err)
		}
		p.Certificates = append(p.Certificates, engines.Status())
	}
	if o.agents {
		p.Agents = a.localAgents(ctx)
	}
	s, err := a.connect(ctx)
	if cli.IsWrong(err) {
		return nil, err
	}
	if err == nil {
		defer s.close()
		p.Snapshot, p.Removals, err = s.store.List(ctx)
		err = a.hint(err)
	}
	if err != nil {
		p.Refused = &doctor.Refused{Auth: refusedUser(err), Text: err.Error()}
		return p, err
	}
	a.lookAtEtcd(ctx, s, p)
	if err := a.lookAtProxies(ctx, s, p); err != nil {
		p.Unseen = append(p.Unseen, doctor.Unseen{What: "proxies", Why: err.Error()})
	}
	if p.Afar, err = s.store.RefusedAgents(ctx); err != nil {
		p.Unseen = append(p.Unseen, doctor.Unseen{What: "agents that are refused", Why: err.Error()})
		err = nil
	}
	if o.probe {
		err = a.lookAtEngines(ctx, o, p)
	}
	return p, err
}

// refusedUser tells that etcd answers, but not this user.
func refusedUser(err error) bool {
	for _, is := range []error{rpctypes.ErrUserEmpty, rpctypes.ErrAuthFailed, rpctypes.ErrInvalidAuthToken, rpctypes.ErrPermissionDenied} {
		if errors.Is(err, is) {
			return true
		}
	}
	return false
}

// reach is what commands need beside their words: the flags that were given, never a
// password.
func (a *app) reach() doctor.Reach {
	list := strings.Join(a.endpoints, ",")
	secure := a.access.etcd
	if secure.Used() {
		list = "https://" + strings.Join(a.endpoints, ",https://")
	}
	r := doctor.Reach{Pdctl: []string{"--etcd-endpoints", list}, Etcdctl: []string{"--endpoints", list}}
	if a.prefix != schema.DefaultPrefix {
		r.Pdctl = append(r.Pdctl, "--etcd-prefix", a.prefix)
	}
	for _, f := range []struct{ value, pdctl, etcdctl string }{
		{secure.Files.CA, "--etcd-ca", "--cacert"}, {secure.Files.Cert, "--etcd-cert", "--cert"}, {secure.Files.Key, "--etcd-key", "--key"},
	} {
		if f.value != "" {
			r.Pdctl, r.Etcdctl = append(r.Pdctl, f.pdctl, f.value), append(r.Etcdctl, f.etcdctl, f.value)
		}
	}
	if a.username != "" {
		r.Etcdctl = append(r.Etcdctl, "--user", "root") // etcdctl asks for the password
	}
	return r
}

func (a *app) localAgents(ctx context.Context) (out []agentctl.Report) {
	getenv := func(name string) string { v, _ := a.lookupEnv(name); return v }
	for _, path := range agentctl.All(getenv) {
		if r, err := agentctl.NewClient(path).Status(ctx); err == nil {
			out = append(out, r)
		}
	}
	return out
}

func (a *app) lookAtEtcd(ctx context.Context, s *session, p *doctor.Picture) {
	for _, e := range s.cli.Endpoints() {
		r := doctor.Endpoint{Address: e}
		cctx, cancel := context.WithTimeout(ctx, min(a.timeout, 2*time.Second))
		st, err := s.cli.Status(cctx, e)
		cancel()
		if err != nil {
			r.Error = instance.Printable(err.Error(), 200)
		} else {
			r.Size, r.Quota, r.Leader, r.Problems = st.DbSize, st.DbSizeQuota, st.Leader != 0, st.Errors
		}
		p.Endpoints = append(p.Endpoints, r)
	}
	cctx, cancel := context.WithTimeout(ctx, a.timeout)
	defer cancel()
	alarms, err := s.cli.AlarmList(cctx)
	if err != nil {
		p.Unseen = append(p.Unseen, doctor.Unseen{What: "etcd's alarms", Why: err.Error()})
	} else {
		for _, al := range alarms.Alarms {
			p.Alarms = append(p.Alarms, doctor.Alarm{Name: al.Alarm.String(), Member: fmt.Sprintf("%x", al.MemberID)})
		}
	}
	schema, err := s.cli.Get(cctx, s.layout.Schema())
	if err != nil {
		p.Unseen = append(p.Unseen, doctor.Unseen{What: s.layout.Schema(), Why: err.Error()})
		return
	}
	p.SchemaErr = etcd.CheckSchema(s.layout, schema.Kvs)
}

// lookAtProxies looks at them, and once more at those that seem to lag.
func (a *app) lookAtProxies(ctx context.Context, s *session, p *doctor.Picture) error {
	newest, err := s.store.Newest(ctx)
	if err != nil {
		return err
	}
	start := time.Now()
	first := map[string]*lease.ProxyLoad{}
	for {
		proxies, err := s.store.Proxies(ctx)
		if err != nil {
			return err
		}
		list, err := s.store.Loads(ctx)
		if err != nil {
			return err
		}
		loads := map[string]*lease.ProxyLoad{}
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
			if x.Applied < newest {
				y.Behind = newest
			}
			y.Silent = sameDigest(first[x.ID], y.Load) && tellsOfOldWork(y.Load)
			lags = lags || y.Behind > 0 || y.Silent
			p.Proxies = append(p.Proxies, y)
		}
		if !lags || time.Since(start) >= lookAgain {
			return nil
		}
		if !pause(ctx, waitPoll) {
			return ctx.Err()
		}
	}
}

// pause waits, and tells whether ctx goes on.
func pause(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}

// sameDigest tells that a proxy has not written another digest.
func sameDigest(a, b *lease.ProxyLoad) bool {
	return a != nil && b != nil && a.At != nil && b.At != nil && a.At.Equal(*b.At)
}

// tellsOfOldWork tells of a digest that should have been renewed, by two clocks.
func tellsOfOldWork(l *lease.ProxyLoad) bool {
	return l.Ignored == "" && len(l.Load) > 0 && time.Since(*l.At) > oldDigest
}

// lookAtEngines asks them from here, a few at a time.
func (a *app) lookAtEngines(ctx context.Context, o *doctorOptions, p *doctor.Picture) error {
	client, err := o.engines.client(o.key)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, 10*a.timeout)
	defer cancel()
	var asked []*instance.Instance
	seen := map[string]bool{}
	for _, in := range p.Snapshot.All() {
		if in.View != instance.Rejected && in.View != instance.Pending && in.Intent != instance.Removed && !seen[in.Address] {
			seen[in.Address] = true
			asked = append(asked, in)
		}
	}
	if n := len(asked) - o.most; n > 0 {
		p.Unseen = append(p.Unseen, doctor.Unseen{What: "engines", Why: fmt.Sprintf("%d of %d were not asked: see --probe-most", n, len(asked))})
		asked = asked[:o.most]
	}
	p.Probes, p.Models = map[instance.Key]error{}, map[instance.Key]instance.Facts{}
	var mu sync.Mutex // guards what was found
	var g errgroup.Group
	g.SetLimit(probesAtOnce)
	for _, in := range asked {
		g.Go(func() error {
			one, cancel := context.WithTimeout(ctx, a.timeout)
			defer cancel()
			base := vllm.BaseURL(in)
			err := client.Health(one, base)
			var facts instance.Facts
			known := false
			if err == nil && len(in.Record.Models) > 0 {
				f, err := client.Models(one, base)
				facts, known = f, err == nil
			}
			mu.Lock()
			defer mu.Unlock()
			p.Probes[in.Key] = err
			if known {
				p.Models[in.Key] = facts
			}
			return nil
		})
	}
	_ = g.Wait()
	if ctx.Err() != nil {
		p.Unseen = append(p.Unseen, doctor.Unseen{What: "engines", Why: "not all were asked in time: give a longer --timeout"})
	}
	return nil
}
