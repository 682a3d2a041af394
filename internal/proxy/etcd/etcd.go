// Package etcd opens the etcd that a proxy uses, and reports its state.
package etcd

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/sirupsen/logrus"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/pdmesh/pdmesh/internal/discovery/access"
	"github.com/pdmesh/pdmesh/internal/discovery/disk"
	"github.com/pdmesh/pdmesh/internal/discovery/embedetcd"
	"github.com/pdmesh/pdmesh/internal/discovery/embedetcd/process"
	"github.com/pdmesh/pdmesh/internal/discovery/etcd"
	"github.com/pdmesh/pdmesh/internal/discovery/watch"
	"github.com/pdmesh/pdmesh/internal/httpapi"
	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/internal/observe/metrics"
	"github.com/pdmesh/pdmesh/internal/proxy/config"
	"github.com/pdmesh/pdmesh/internal/proxy/secure"
)

// Handle is the etcd in use: the embedded one, another proxy's, or a cluster.
type Handle struct {
	Client    *clientv3.Client
	endpoints []string
	server    *process.Host // nil without an embedded etcd
	members   *etcd.Members // nil with an embedded etcd
	log       logrus.FieldLogger
}

// Open starts the embedded etcd, if the configuration has one, and connects.
func Open(ctx context.Context, cfg *config.Proxy, certificates *secure.Certificates, log *logrus.Logger) (*Handle, error) {
	h := &Handle{endpoints: cfg.EtcdEndpoints, log: log.WithField("component", "etcd")}
	if cfg.Embedded() {
		server, err := process.Start(ctx, process.Config{
			ListenClient: cfg.EtcdListen, DataDir: cfg.EtcdDataDir, Gateway: cfg.EtcdGateway,
			Prefix: cfg.EtcdPrefix, TLS: cfg.EmbeddedEtcdFiles, Log: log,
		})
		switch {
		case errors.Is(err, embedetcd.ErrJoin):
			h.endpoints = []string{cfg.EtcdListen}
			h.log.Infof("using the etcd that already serves at %s", cfg.EtcdListen)
		case err != nil:
			return nil, err
		default:
			h.server, h.endpoints = server, []string{server.Endpoint()}
		}
	}
	client, err := etcd.Dial(etcd.Config{
		Endpoints: h.endpoints, Username: cfg.EtcdUsername, Password: cfg.EtcdPassword, Log: h.log,
		TLS: access.ConfigOf(certificates.Etcd),
	})
	if err != nil {
		h.Close()
		return nil, fmt.Errorf("etcd at %s: %w", strings.Join(h.endpoints, ","), err)
	}
	h.Client = client
	if !cfg.Embedded() {
		o := etcd.MembersOptions{Client: client, Interval: 2 * cfg.AuditInterval, Log: h.log}
		if dir := cfg.StateDir; dir != "" {
			o.Load = func() (etcd.SavedMembers, error) { return disk.ReadMembers(dir) }
			o.Save = func(m etcd.SavedMembers) error { return disk.WriteMembers(dir, m) }
		}
		h.members = etcd.NewMembers(o)
	}
	return h, nil
}

// Follow keeps the endpoints up to date with the members of the cluster until ctx ends.
func (h *Handle) Follow(ctx context.Context) {
	if h.members != nil {
		h.members.Run(ctx)
	}
}

// Findings returns the settings of etcd that an operator has to change, for /status.
func (h *Handle) Findings() (texts []string) {
	for _, endpoint := range h.members.Status().Departed {
		texts = append(texts, fmt.Sprintf("the configured etcd endpoint %s is not a member of the cluster, or does not answer: update --etcd-endpoints if the member was replaced", endpoint))
	}
	return texts
}

// Close closes the connection and stops the embedded server. h may be nil.
func (h *Handle) Close() {
	if h == nil {
		return
	}
	if h.Client != nil {
		_ = h.Client.Close() // nothing is in flight
	}
	if h.server != nil {
		h.server.Close()
	}
}

func (h *Handle) embedded() bool { return h.server != nil && !h.server.State().Joined }

// Describe returns the endpoints for the log.
func (h *Handle) Describe() string {
	s := strings.Join(h.endpoints, ",")
	if h.embedded() {
		return s + " (embedded)"
	}
	return s
}

// Status returns the state of etcd for /status. w is the state of the watch.
func (h *Handle) Status(w watch.Status) httpapi.EtcdStatus {
	members := h.members.Status()
	s := httpapi.EtcdStatus{
		Members: members.Added, Departed: members.Departed,
		State: string(w.State), Embedded: h.embedded(), Endpoints: h.endpoints, LastError: w.LastError,
		Orphans: w.Orphans, Held: w.Held, Kept: w.Kept, Epochs: w.Epochs,
	}
	if h.embedded() {
		own := h.server.State()
		s.Ended, s.Ends = instance.Printable(own.Ended, 400), own.Ends
	}
	if !w.LastContact.IsZero() {
		s.LastContact = w.LastContact.UTC().Format(time.RFC3339)
	}
	return s
}

// Metrics returns the state of etcd for /metrics.
func (h *Handle) Metrics(w watch.Status) metrics.Etcd {
	e := metrics.Etcd{Status: w}
	if h.embedded() {
		own := h.server.State()
		e.Own, e.OwnRuns, e.OwnEnds = true, own.Ended == "", own.Ends
	}
	return e
}
