package health

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/sirupsen/logrus"
	"golang.org/x/time/rate"

	"github.com/pdmesh/pdmesh/internal/instance"
)

// complainEvery is the least time between two log entries about probes that could not be sent:
// the reason holds for all instances, and they are probed each second.
const complainEvery = 10 * time.Second

// probes sends the probes of a Tracker, until close is called.
type probes struct {
	prober  Prober
	timeout time.Duration
	log     logrus.FieldLogger

	ctx    context.Context //nolint:containedctx // the probes' own lifetime, ended by close
	cancel context.CancelFunc
	work   sync.WaitGroup // all goroutines of the Tracker

	complaints rate.Sometimes // see complain
}

func newProbes(o *Options) *probes {
	ctx, cancel := context.WithCancel(context.Background())
	return &probes{prober: o.Prober, timeout: o.ProbeTimeout, log: o.Log, ctx: ctx, cancel: cancel, complaints: rate.Sometimes{Interval: complainEvery}}
}

// close ends the probes and waits for the goroutines.
func (p *probes) close() {
	p.cancel()
	p.work.Wait()
}

// probe probes an instance; nil means that it has answered.
func (p *probes) probe(in *instance.Instance) error {
	ctx, cancel := context.WithTimeout(p.ctx, p.timeout)
	defer cancel()
	err := p.prober.Alive(ctx, in)
	if err != nil && errors.Is(ctx.Err(), context.DeadlineExceeded) && !errors.Is(err, ErrNotSent) {
		return fmt.Errorf("%w within %s", ErrNoAnswer, p.timeout)
	}
	return err
}

// complain logs that an instance could not be probed, at most once in complainEvery.
func (p *probes) complain(k instance.Key, why string) {
	p.complaints.Do(func() {
		p.log.WithError(errors.New(why)).WithField("instance", k.String()).Warn("a silent instance could not be probed")
	})
}
