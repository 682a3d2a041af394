package program

import (
	"context"
	"fmt"
	"net/http"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/pdmesh/pdmesh/internal/agent/setup"
	"github.com/pdmesh/pdmesh/internal/cli/background"
	"github.com/pdmesh/pdmesh/internal/engine/vllm"
	"github.com/pdmesh/pdmesh/internal/observe/logging"
	"github.com/pdmesh/pdmesh/internal/transport/certs"
)

// certificates has the certificate sources of the agent; see package certs.
type certificates struct {
	engine *certs.Source
	etcd   *certs.Source // nil: etcd is reached without TLS
}

// open reads the certificate files.
func open(s setup.Secured, log logrus.FieldLogger) (c certificates, err error) {
	log = log.WithField(logging.FieldComponent, "tls")
	c.engine, err = certs.Open(certs.Options{Use: certs.UseEngines, Files: s.Engine, ServerName: s.ServerName, Log: log})
	if err != nil {
		return c, fmt.Errorf("certificates for the engine: %w", err)
	}
	c.etcd, err = s.Etcd.Open(log)
	return c, err
}

// watch reloads changed files until stop is called. It outlives ctx, like the registration.
func (c certificates) watch(ctx context.Context) (stop func()) {
	if c.etcd == nil {
		return background.Start(ctx, c.engine.Watch)
	}
	return background.Start(ctx, c.engine.Watch, c.etcd.Watch)
}

// findings returns the problems with certificates.
func (c certificates) findings() (problems []string) {
	for _, s := range []*certs.Source{c.engine, c.etcd} {
		if s == nil {
			continue
		}
		if text := s.Status().Finding(time.Now()); text != "" {
			problems = append(problems, text)
		}
	}
	return problems
}

// client returns a client for the engine.
func (c certificates) client(apiKey string) *vllm.Client {
	return &vllm.Client{HTTP: &http.Client{Transport: vllm.SecureTransport(c.engine.Client)}, APIKey: apiKey}
}
