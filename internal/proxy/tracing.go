package proxy

import (
	"context"
	"strconv"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/pdmesh/pdmesh/internal/cli/version"
	"github.com/pdmesh/pdmesh/internal/observe/tracing"
	"github.com/pdmesh/pdmesh/internal/proxy/config"
)

// openTracer returns nil without a trace collector.
func openTracer(cfg *config.Proxy, id string, log logrus.FieldLogger) (*tracing.Tracer, error) {
	o := tracing.Options{Endpoint: cfg.OTLPEndpoint, Version: version.String(), ID: id, Log: log.WithField("component", "tracing")}
	if share, err := strconv.ParseFloat(cfg.TraceSample, 64); err == nil { // Validate has checked it
		o.Sample = &share
	}
	return tracing.Open(context.Background(), o)
}

// traceGrace bounds the time for the last traces to reach their collector.
const traceGrace = 2 * time.Second

// closeTracer flushes the last traces.
func (p *app) closeTracer() {
	ctx, cancel := context.WithTimeout(context.Background(), traceGrace)
	defer cancel()
	if err := p.tracer.Close(ctx); err != nil {
		p.log.WithError(err).Warn("could not export the last traces")
	}
}
