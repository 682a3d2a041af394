// Package secure has the TLS certificates of a proxy for clients, engines and etcd.
package secure

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/pdmesh/pdmesh/internal/observe/metrics"
	"github.com/pdmesh/pdmesh/internal/proxy/config"
	"github.com/pdmesh/pdmesh/internal/transport/certs"
)

// Certificates has the certificate sources of a proxy.
type Certificates struct {
	listener  *certs.Source // nil: clients speak plain HTTP
	Engines   *certs.Source
	Etcd      *certs.Source   // nil: etcd is reached without TLS
	sources   []*certs.Source // those above that are set, and that of the embedded etcd (its process reads the same files)
	listeners []*certs.Listener
}

// Open reads the files that a configuration names.
func Open(cfg *config.Proxy, log *logrus.Logger) (*Certificates, error) {
	c := &Certificates{}
	entry := log.WithField("component", "tls")
	var err error
	if files := cfg.ListenerFiles; !files.None() {
		if c.listener, err = certs.Open(certs.Options{Use: certs.UseListener, Files: files, Log: entry}); err != nil {
			return nil, fmt.Errorf("certificates for clients (--tls-cert): %w", err)
		}
	}
	c.Engines, err = certs.Open(certs.Options{
		Use: certs.UseEngines, Files: cfg.EngineFiles, ServerName: cfg.EngineServerName, Log: entry,
	})
	if err != nil {
		return nil, fmt.Errorf("certificates for engines (--engine-ca, --engine-cert): %w", err)
	}
	var embedded *certs.Source
	if files := cfg.EmbeddedEtcdFiles; cfg.Embedded() && !files.None() {
		if embedded, err = certs.Open(certs.Options{Use: certs.UseEtcdListener, Files: files, Log: entry}); err != nil {
			return nil, fmt.Errorf("certificates of the embedded etcd (--etcd-listen-cert): %w", err)
		}
	}
	if c.Etcd, err = cfg.EtcdTLS.Open(entry); err != nil {
		return nil, err
	}
	c.sources = slices.DeleteFunc([]*certs.Source{c.listener, c.Engines, c.Etcd, embedded}, func(s *certs.Source) bool { return s == nil })
	return c, nil
}

// Watch reloads the files when they change, until ctx ends.
func (c *Certificates) Watch(ctx context.Context, work *sync.WaitGroup) {
	for _, s := range c.sources {
		work.Go(func() { s.Watch(ctx) })
	}
}

// Listen wraps a listener in TLS, if clients use it. It must be called before the server serves.
func (c *Certificates) Listen(ln net.Listener, log *logrus.Logger) net.Listener {
	if c.listener == nil {
		return ln
	}
	l := c.listener.Listen(ln, log.WithField("component", "tls"))
	c.listeners = append(c.listeners, l)
	return l
}

// Scheme returns the URL scheme for clients.
func (c *Certificates) Scheme() string {
	if c.listener == nil {
		return "http"
	}
	return "https"
}

// Findings returns the problems with certificates.
func (c *Certificates) Findings() (problems []string) {
	for _, s := range c.sources {
		if text := s.Status().Finding(time.Now()); text != "" {
			problems = append(problems, text)
		}
	}
	return problems
}

// Metrics returns the state of the certificates and the number of refused connections.
func (c *Certificates) Metrics() metrics.TLS {
	return metrics.TLS{
		Sources: func() (list []certs.Status) {
			for _, s := range c.sources {
				list = append(list, s.Status())
			}
			return list
		},
		Refused: func() map[certs.Reason]int64 {
			sum := map[certs.Reason]int64{}
			for _, l := range c.listeners {
				for r, n := range l.RefusedCounts() {
					sum[r] += n
				}
			}
			return sum
		},
	}
}

// SecureEngines makes a transport to engines use the certificates of the proxy; without any it
// uses the CAs of the system.
func (c *Certificates) SecureEngines(t *http.Transport, limit time.Duration) {
	if c == nil {
		return
	}
	t.DialTLSContext = certs.DialTLS(t.DialContext, c.Engines.Client, limit)
}
