package config

import (
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/pdmesh/pdmesh/internal/cli/settings"
	"github.com/pdmesh/pdmesh/internal/observe/logging"
)

// Records has the settings of logs, metrics and traces.
type Records struct {
	AccessLog    bool
	TraceHeaders bool   // whether every answer has X-PD-... headers
	OTLPEndpoint string // URL of a collector; "" = from the OTEL_ variables
	TraceSample  string // share of the requests that are traced; "" = from the OTEL_ variables, or the default

	MetricsModels int // maximum number of models with their own labels in metrics

	LogLevel  string
	LogFormat string
}

func (r *Records) settings() settings.Table {
	return settings.About("Logs, metrics and traces",
		settings.Setting{Name: "access-log", Kind: settings.OnOff, Default: "on", Usage: "log one line for each request", Into: &r.AccessLog},
		settings.Setting{Name: "trace-headers", Kind: settings.OnOff, Default: "off", Usage: "add X-PD-... headers with the instances to every answer", Into: &r.TraceHeaders},
		settings.Setting{Name: "otlp-endpoint", Kind: settings.Text, Usage: "URL of an OTLP collector for traces, such as http://127.0.0.1:4318; also OTEL_EXPORTER_OTLP_ENDPOINT and other OTEL_ variables; without it there are no traces", Into: &r.OTLPEndpoint},
		settings.Setting{Name: "trace-sample", Kind: settings.Text, Rare: true, Usage: "share of requests that are traced, from 0 to 1; for a request with a traceparent, its flag decides (default 0.01, or OTEL_TRACES_SAMPLER)", Into: &r.TraceSample},
		settings.Setting{Name: "metrics-models", Kind: settings.Number, Takes: "0 to 10000", Default: "100", Rare: true, Usage: "models that have their own label in metrics; the others together have the label other; 0 to 10000, each takes some 60 series", Into: &r.MetricsModels},
		settings.Setting{Name: "log-level", Kind: settings.Text, Default: "info", Usage: "error, warn, info, debug or trace", Into: &r.LogLevel},
		settings.Setting{Name: "log-format", Kind: settings.Text, Default: "text", Usage: "text or json", Into: &r.LogFormat},
	)
}

func (r *Records) check(c *complaints) {
	if u, err := url.Parse(r.OTLPEndpoint); r.OTLPEndpoint != "" && (err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "") {
		c.bad("otlp-endpoint", "invalid URL %q: use one such as http://127.0.0.1:4318", r.OTLPEndpoint)
	}
	if share, err := strconv.ParseFloat(r.TraceSample, 64); r.TraceSample != "" && (err != nil || !(share >= 0 && share <= 1)) {
		c.bad("trace-sample", "%q: must be a share from 0 to 1, such as 0.01", r.TraceSample)
	}
	if !slices.Contains(logging.Levels(), strings.ToLower(r.LogLevel)) && !strings.EqualFold(r.LogLevel, "warning") {
		c.bad("log-level", "%q is not known; use %s", r.LogLevel, strings.Join(logging.Levels(), ", "))
	}
	if f := strings.ToLower(r.LogFormat); f != logging.FormatText && f != logging.FormatJSON {
		c.bad("log-format", "%q is not known; use text or json", r.LogFormat)
	}
}
