package proxy

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/pdmesh/pdmesh/internal/certs"
	"github.com/pdmesh/pdmesh/internal/config"
	"github.com/pdmesh/pdmesh/internal/metrics"
)

// certificates are those of this proxy, by what they are for.
type certificates struct {
	listener  *certs.Source // nil: clients speak plain HTTP
	engines   *certs.Source
	etcd      *certs.Source // nil: etcd is reached without TLS
	own       *certs.Source // of the proxy's own etcd, whose process serves by the same files; nil: none
	listeners []*certs.Listener
}

func openCertificates(cfg *config.Proxy, log *logrus.Logger) (*certificates, error) {
	c := &certificates{}
	entry := log.WithField("component", "tls")
	var err error
	if files := cfg.ListenerFiles(); !files.None() {
		if c.listener, err = certs.Open(certs.Options{Use: certs.UseListener, Files: files, Log: entry}); err != nil {
			return nil, fmt.Errorf("certificates for clients (--tls-cert): %w", err)
		}
	}
	c.engines, err = certs.Open(certs.Options{
		Use: certs.UseEngines, Files: cfg.EngineFiles(), ServerName: cfg.EngineServerName, Log: entry,
	})
	if err != nil {
		return nil, fmt.Errorf("certificates for engines (--engine-ca, --engine-cert): %w", err)
	}
	if files := cfg.OwnEtcdFiles(); cfg.Embedded() && !files.None() {
		if c.own, err = certs.Open(certs.Options{Use: certs.UseEtcdListener, Files: files, Log: entry}); err != nil {
			return nil, fmt.Errorf("certificates of the proxy's own etcd (--etcd-listen-cert): %w", err)
		}
	}
	if c.etcd, err = cfg.EtcdTLS().Open(entry); err != nil {
		return nil, err
	}
	return c, nil
}

func (c *certificates) all() (list []*certs.Source) {
	for _, s := range []*certs.Source{c.listener, c.engines, c.etcd, c.own} {
		if s != nil {
			list = append(list, s)
		}
	}
	return list
}

// watch reads the files again from time to time until ctx ends.
func (c *certificates) watch(ctx context.Context, work *sync.WaitGroup) {
	for _, s := range c.all() {
		work.Go(func() { s.Watch(ctx) })
	}
}

// listen puts TLS on a listener, where clients speak it. It is called before the
// server serves.
func (c *certificates) listen(ln net.Listener, log *logrus.Logger) net.Listener {
	if c.listener == nil {
		return ln
	}
	l := c.listener.Listen(ln, log.WithField("component", "tls"))
	c.listeners = append(c.listeners, l)
	return l
}

func (c *certificates) scheme() string {
	if c.listener == nil {
		return "http"
	}
	return "https"
}

// findings are what an operator has to see to.
func (c *certificates) findings() (words []string) {
	for _, s := range c.all() {
		if text := s.Status().Finding(time.Now()); text != "" {
			words = append(words, text)
		}
	}
	return words
}

// metrics is the same for the counters.
func (c *certificates) metrics() metrics.TLS {
	return metrics.TLS{
		Sources: func() (list []certs.Status) {
			for _, s := range c.all() {
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

// secureEngines puts the proxy's certificates on a transport to engines; without any the
// system's authorities count.
func (c *certificates) secureEngines(t *http.Transport, limit time.Duration) {
	if c == nil {
		return
	}
	t.DialTLSContext = certs.DialTLS(t.DialContext, c.engines.Client, limit)
}
