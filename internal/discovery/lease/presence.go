package lease

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/sirupsen/logrus"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/pdmesh/pdmesh/internal/discovery/etcd"
	"github.com/pdmesh/pdmesh/internal/discovery/loaddigest"
	"github.com/pdmesh/pdmesh/internal/discovery/schema"
	"github.com/pdmesh/pdmesh/internal/instance"
)

// ProxyPresence is the JSON value of a proxy's key.
type ProxyPresence struct {
	V       int    `json:"v"`
	ID      string `json:"id"`
	Address string `json:"address,omitempty"` // listen address, host:port
	// AdminURL is the base URL of its operator routes, such as /status; "" if unknown.
	AdminURL string `json:"admin_url,omitempty"`
	Version  string `json:"version,omitempty"`
	// Applied is the highest mod_revision of the membership's keys that the proxy has applied.
	// Presences do not count: each write of one would cause another.
	Applied   int64      `json:"applied"`
	StartedAt *time.Time `json:"started_at,omitempty"` // for display; never compared

	// Connector is the dialect of instances whose record names none.
	Connector string `json:"connector,omitempty"`
	// Documents are the folders of documents that the proxy reads. Nil: it is of an older release,
	// and may read none.
	Documents []instance.Role `json:"documents,omitempty"`
	Report

	Revision int64 `json:"-"` // mod_revision of the key
}

// BaseURL returns the base URL of the operator routes, scheme://host:port. A proxy of an older
// release publishes only its listen address, which is an error if it names no host. Any other form
// of URL is an error, too: writers of etcd must not choose the paths that readers request.
func (p *ProxyPresence) BaseURL() (string, error) {
	host, _, _ := net.SplitHostPort(p.Address)
	if ip := net.ParseIP(host); p.AdminURL == "" && (host == "" || ip != nil && ip.IsUnspecified()) {
		return "", fmt.Errorf("proxy %s has no admin URL in etcd, and its address %q names no host", p.ID, p.Address)
	}
	base := cmp.Or(p.AdminURL, "http://"+p.Address)
	if u, err := url.Parse(base); err != nil || u.Scheme != "http" && u.Scheme != "https" || base != u.Scheme+"://"+u.Host {
		return "", fmt.Errorf("proxy %s has the URL %q in etcd, which is not http://host:port or https://host:port", p.ID, base)
	}
	return base, nil
}

// PresenceOptions configure a Presence. Layout, ID, Applied and Report have to be set.
type PresenceOptions struct {
	Layout  schema.Layout
	ID      string
	Address string
	// AdminURL is as in ProxyPresence.
	AdminURL string
	Version  string
	// Applied returns the watcher's Status().Applied.
	Applied func() int64
	// Connector is as in ProxyPresence.
	Connector string
	// Report returns the report to publish.
	Report func() Report
	// Load is the source of the load digest, which has a separate key under the same lease; nil: no
	// digest is published.
	Load *loaddigest.Source
	TTL  time.Duration // of the lease, default 15 s
	// Interval is the least time between two writes, default 1 s.
	Interval time.Duration
	// LoadInterval is the shortest time between two load digests, default Interval.
	LoadInterval time.Duration
	Log          logrus.FieldLogger // nil: silent
}

// Presence keeps a proxy's key in etcd, so that others see that the proxy runs and which revision
// it has applied. The proxy itself does not depend on it: a failed write is only retried.
type Presence struct {
	cli    *clientv3.Client
	o      PresenceOptions
	log    logrus.FieldLogger
	keeper *leaseKeeper
}

// NewPresence returns a Presence that uses cli, which the caller closes after Run has returned.
func NewPresence(cli *clientv3.Client, o PresenceOptions) *Presence {
	o.TTL = cmp.Or(o.TTL, schema.DefaultTTL)
	o.Interval = cmp.Or(o.Interval, time.Second)
	o.LoadInterval = cmp.Or(o.LoadInterval, o.Interval)
	return &Presence{cli: cli, o: o, log: etcd.LogOrDiscard(o.Log), keeper: newLeaseKeeper(cli, o.TTL)}
}

// Run holds the key until ctx ends. Then it revokes its lease, so that the
// others see at once that the proxy has ended.
func (p *Presence) Run(ctx context.Context) {
	var work sync.WaitGroup
	work.Go(func() { p.keeper.run(ctx) })
	work.Go(func() { p.hold(ctx) })
	if p.o.Load != nil {
		work.Go(func() {
			loaddigest.Publish(ctx, loaddigest.PublishOptions{
				Source: p.o.Load, Interval: p.o.LoadInterval, TTL: p.o.TTL, Log: p.log,
				Lease: func() clientv3.LeaseID { return p.keeper.state().id },
				Write: func(ctx context.Context, value string, id clientv3.LeaseID) error {
					return p.put(ctx, p.o.Layout.Load(p.o.ID), value, id)
				},
			})
		})
	}
	work.Wait()
	end, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Second)
	defer cancel()
	if err := p.keeper.revoke(end); err != nil {
		p.log.WithField("error", err).Debug("the presence key stays until its lease runs out")
	}
}

// hold writes the key when its content or its lease has changed, and once each TTL in case
// it was deleted.
func (p *Presence) hold(ctx context.Context) {
	started := time.Now().UTC()
	tick := time.NewTicker(p.o.Interval)
	defer tick.Stop()
	var written int64
	var published Report
	var under clientv3.LeaseID
	var at time.Time
	failed := false
	for {
		applied, id := p.o.Applied(), p.keeper.state().id // before the report, which must not be older
		report := p.o.Report().settled(&published)
		if id == 0 || id != under || applied != written || !report.equalExceptNumbers(&published) || time.Since(at) > p.o.TTL {
			lease, err := p.write(ctx, applied, report, started, !failed)
			switch {
			case ctx.Err() != nil:
				return
			case err != nil && !failed:
				p.log.WithField("error", err).Warn("cannot write this proxy's presence; retrying")
			case err == nil:
				written, published, under, at = applied, report, lease, time.Now()
			}
			failed = err != nil
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

func withoutDigits(s string) string {
	return strings.Map(func(r rune) rune {
		if r >= '0' && r <= '9' {
			return -1
		}
		return r
	}, s)
}

// put writes a key unless it has this value and lease already, so that an idle fleet does not
// advance the revision of etcd.
func (p *Presence) put(ctx context.Context, key, value string, id clientv3.LeaseID) error {
	cctx, cancel := context.WithTimeout(ctx, etcd.CallTimeout)
	defer cancel()
	_, err := p.cli.Txn(cctx).
		If(clientv3.Compare(clientv3.Value(key), "=", value), clientv3.Compare(clientv3.LeaseValue(key), "=", id)).
		Else(clientv3.OpPut(key, value, clientv3.WithLease(id))).Commit()
	if errors.Is(err, rpctypes.ErrLeaseNotFound) {
		p.keeper.forget(id)
	}
	return err
}

func (p *Presence) write(ctx context.Context, applied int64, report Report, started time.Time, withDiagnosis bool) (clientv3.LeaseID, error) {
	value, _ := json.Marshal(ProxyPresence{ // not schema.Encode: a report may be larger than a record
		V: 1, ID: p.o.ID, Address: p.o.Address, AdminURL: p.o.AdminURL, Version: p.o.Version, Applied: applied, StartedAt: &started,
		Connector: p.o.Connector, Documents: schema.Folders(), Report: report,
	})
	id, err := p.keeper.lease(ctx)
	if err != nil {
		return 0, err
	}
	err = p.put(ctx, p.o.Layout.Proxy(p.o.ID), string(value), id)
	switch {
	case errors.Is(err, rpctypes.ErrLeaseNotFound):
		return 0, fmt.Errorf("write presence: %w", err)
	case err != nil:
		return 0, etcd.Explain(ctx, p.cli, "write presence", err, withDiagnosis)
	}
	return id, nil
}

// ReadProxies decodes the keys of proxies. If a value cannot be decoded, only ID and Revision are
// set.
func ReadProxies(l schema.Layout, kvs []*mvccpb.KeyValue) []ProxyPresence {
	out := make([]ProxyPresence, 0, len(kvs))
	for _, kv := range kvs {
		var p ProxyPresence
		if err := json.Unmarshal(kv.Value, &p); err != nil {
			p = ProxyPresence{}
		}
		p.ID = instance.Printable(strings.TrimPrefix(string(kv.Key), l.Proxy("")), 128)
		p.Address, p.Version = instance.Printable(p.Address, 300), instance.Printable(p.Version, 64)
		p.AdminURL, p.Connector = instance.Printable(p.AdminURL, 300), instance.Printable(p.Connector, 64)
		p.NotServing = instance.Printable(p.NotServing, 500)
		for k, r := range p.Instances {
			r.View = instance.View(instance.Printable(string(r.View), 32))
			p.Instances[k] = r
		}
		if i := slices.IndexFunc(p.Notices, isNotServing); i >= 0 { // also of releases without NotServing
			p.NotServing = cmp.Or(p.NotServing, instance.Printable(p.Notices[i], 500))
			p.Notices = slices.DeleteFunc(p.Notices, isNotServing)
		}
		p.Notices = p.Notices[:min(len(p.Notices), 16)]
		for i, text := range p.Notices {
			p.Notices[i] = instance.Printable(text, 500)
		}
		p.Revision = kv.ModRevision
		out = append(out, p)
	}
	return out
}
