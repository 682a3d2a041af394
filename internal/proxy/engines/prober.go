// Package engines probes engines and interprets their records for a proxy.
package engines

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/oklog/ulid/v2"

	"github.com/pdmesh/pdmesh/internal/connector"
	"github.com/pdmesh/pdmesh/internal/engine/bootstrap"
	"github.com/pdmesh/pdmesh/internal/engine/vllm"
	"github.com/pdmesh/pdmesh/internal/health"
	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/internal/proxy/config"
	"github.com/pdmesh/pdmesh/internal/proxy/secure"
	"github.com/pdmesh/pdmesh/internal/transport/netguard"
	"github.com/pdmesh/pdmesh/internal/transport/upstream"
)

// Prober probes engines with the same network guard as requests.
type Prober struct {
	Client    *vllm.Client
	connector string        // connector of records that name none
	idsLimit  time.Duration // limit for the query of a bootstrap server in Alive
}

// idsLimit is well below health.Options.SilenceLimit, so that a silent bootstrap server does not make
// its engine count as silent.
const idsLimit = 500 * time.Millisecond

// NewProber makes a Prober.
func NewProber(cfg *config.Proxy, guard netguard.Policy, certificates *secure.Certificates) Prober {
	d := upstream.NewDialer(upstream.Options{ConnectTimeout: cfg.ConnectTimeout, Guard: guard})
	c := vllm.New(cfg.EngineAPIKey)
	c.Timeout = cfg.ProbeTimeout
	t := &http.Transport{DialContext: d.DialContext, DisableKeepAlives: true, MaxResponseHeaderBytes: 64 << 10}
	certificates.SecureEngines(t, cfg.ProbeTimeout)
	c.HTTP = &http.Client{Transport: t}
	return Prober{Client: c, connector: cfg.Connector, idsLimit: idsLimit}
}

// Probe implements watch.Prober. It queries both servers of a Mooncake prefill engine
// concurrently, so that each has the whole timeout.
func (p Prober) Probe(ctx context.Context, in *instance.Instance) (instance.Facts, error) {
	if !Learns(p.connector)(in.Key, in.Record) {
		return p.Client.Probe(ctx, in)
	}
	var ids map[string]string
	var idsErr error
	var query sync.WaitGroup
	query.Go(func() { ids, idsErr = bootstrap.Query(ctx, p.Client.HTTP, bootstrapOf(in, p.connector)) })
	facts, err := p.Client.Probe(ctx, in)
	query.Wait()
	facts.EngineIDs = ids
	return facts, cmp.Or(err, idsErr)
}

// Models reads the list of models of an instance's engine.
func (p Prober) Models(ctx context.Context, in *instance.Instance) (instance.Facts, error) {
	return p.Client.Models(ctx, vllm.BaseURL(in))
}

// bootstrapOf returns the address of the server that publishes the engine ids of an instance,
// "" if there is none. def is the connector of records that name none.
func bootstrapOf(in *instance.Instance, def string) string {
	d, err := connector.OfRecord(&in.Record, def)
	if err != nil {
		return ""
	}
	return d.Terms(in).Bootstrap
}

// Learns returns a function that reports whether the proxy queries an engine for its ids,
// because its record has none.
func Learns(def string) func(instance.Key, instance.Record) bool {
	return func(k instance.Key, rec instance.Record) bool {
		return len(rec.EngineIDs) == 0 && rec.State != instance.Starting &&
			bootstrapOf(&instance.Instance{Key: k, Record: rec}, def) != ""
	}
}

// errRestarted is the error for an engine whose ids differ from those of its record.
var errRestarted = errors.New("it has restarted, and its new engine ids are not known yet")

// Alive implements health.Prober. An engine whose ids differ from its record is not alive, because its
// legs could not find their partners.
func (p Prober) Alive(ctx context.Context, in *instance.Instance) error {
	err := p.Client.Health(ctx, vllm.BaseURL(in))
	switch {
	case errors.Is(err, vllm.ErrNotSent):
		return fmt.Errorf("%w: %w", health.ErrNotSent, err)
	case errors.Is(err, vllm.ErrTimeout):
		return fmt.Errorf("%w: %w", health.ErrNoAnswer, err)
	case err != nil || len(in.Record.EngineIDs) == 0:
		return err
	}
	address := bootstrapOf(in, p.connector)
	if address == "" {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, p.idsLimit)
	defer cancel()
	ids, err := bootstrap.Query(ctx, p.Client.HTTP, address)
	if err != nil {
		return nil // the engine is healthy; only its agent may be able to reach that server
	}
	for rank, id := range in.Record.EngineIDs {
		if ids[rank] != id {
			return errRestarted
		}
	}
	return nil
}

// Usable returns a function that rejects records that lack what their connector needs. def is the
// connector of records that name none.
func Usable(def string) func(instance.Key, instance.Record) error {
	return func(k instance.Key, rec instance.Record) error {
		if rec.State == instance.Starting {
			_, err := connector.OfRecord(&rec, def)
			return err // it gets no requests, and its agent does not know everything yet
		}
		return connector.Lacks(k, rec, def)
	}
}

// Load implements scrape.Asker.
func (p Prober) Load(ctx context.Context, in *instance.Instance) ([]vllm.RankLoad, error) {
	return p.Client.Load(ctx, vllm.BaseURL(in))
}

// Trial sends a request of one token to each data-parallel rank of an engine, and returns nil
// once all have answered. It implements health.Options.Trial.
func (p Prober) Trial(ctx context.Context, in *instance.Instance) error {
	model := ""
	if len(in.Record.Models) > 0 {
		model = in.Record.Models[0]
	}
	id, n := "pd-trial-"+ulid.Make().String(), in.Ranks()
	if n == 1 {
		return trialError(p.Client.Trial(ctx, vllm.BaseURL(in), model, id, -1))
	}
	errs := make([]error, n)
	var trials sync.WaitGroup
	for rank := range n {
		trials.Go(func() { errs[rank] = p.Client.Trial(ctx, vllm.BaseURL(in), model, id+"-"+strconv.Itoa(rank), rank) })
	}
	trials.Wait()
	return trialError(errors.Join(errs...))
}

// trialError classifies the error of a trial.
func trialError(err error) error {
	var status *vllm.StatusError
	switch {
	case err == nil:
		return nil
	case errors.Is(err, vllm.ErrTimeout):
		return fmt.Errorf("%w: %w", health.ErrNoAnswer, err)
	case errors.Is(err, vllm.ErrNotSent):
		return fmt.Errorf("%w: %w", health.ErrNotSent, err)
	case errors.As(err, &status) && status.Code >= 400 && status.Code < 500 &&
		status.Code != http.StatusRequestTimeout && status.Code != http.StatusTooEarly && status.Code != http.StatusTooManyRequests:
		return fmt.Errorf("%w: %w", health.ErrRefused, err)
	}
	return err
}

// Suspended implements health.Options.Suspended.
func (p Prober) Suspended(ctx context.Context, in *instance.Instance) (instance.View, error) {
	state, err := p.Client.Suspended(ctx, vllm.BaseURL(in))
	if status, ok := errors.AsType[*vllm.StatusError](err); ok && status.Code >= 400 && status.Code < 500 {
		return "", fmt.Errorf("%w: %w", health.ErrNoRoute, err)
	}
	return state, err
}
