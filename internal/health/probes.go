package health

import (
	"context"
	"errors"
	"fmt"

	"github.com/pdmesh/pdmesh/internal/instance"
)

// probe probes an instance; nil means that it has answered.
func (t *Tracker) probe(in *instance.Instance) error {
	ctx, cancel := context.WithTimeout(t.ctx, t.opts.ProbeTimeout)
	defer cancel()
	err := t.opts.Prober.Alive(ctx, in)
	if err != nil && errors.Is(ctx.Err(), context.DeadlineExceeded) && !errors.Is(err, ErrNotSent) {
		return fmt.Errorf("%w within %s", ErrNoAnswer, t.opts.ProbeTimeout)
	}
	return err
}
