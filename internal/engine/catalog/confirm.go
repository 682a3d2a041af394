package catalog

import (
	"context"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/pdmesh/pdmesh/internal/instance"
)

// Verdict is the reason why an engine responded with 404 for a model that it is known to serve.
type Verdict uint8

// The verdicts.
const (
	// Unclear: the engine could not be read, or the model may have been unloaded and loaded
	// again meanwhile.
	Unclear Verdict = iota
	// Unloaded: the engine does not list the model any more.
	Unloaded
	// Broken: for at least brokenAfter, the engine has listed the model and answered 404 for it.
	Broken
)

// confirm is a read of one engine that requests wait for.
type confirm struct {
	began  time.Time         // zero until it begins; guarded by Catalog.mu
	done   chan struct{}     // closed when the read has ended
	read   read              // written before done
	listed map[string]series // by model; guarded by Catalog.mu
}

// series is the time in which an engine has listed a model and answered 404 for it, each time
// within brokenAfter of the last.
type series struct{ first, last time.Time }

// Confirm reads the engine of an instance that responded with 404 for a model that it is known to
// serve. Requests share a read that begins after their own response, so that a burst of requests
// causes few reads. If the model was unloaded, the other engines are read as well.
func (c *Catalog) Confirm(ctx context.Context, in *instance.Instance, model string) Verdict {
	if c == nil {
		return Broken
	}
	r := c.confirmation(in)
	if r == nil {
		return Unclear
	}
	select {
	case <-ctx.Done():
		return Unclear
	case <-r.done:
		return c.verdict(r, model)
	}
}

// confirmation returns the read of an engine that begins when the previous one has ended; nil after the end
// of Run.
func (c *Catalog) confirmation(in *instance.Instance) *confirm {
	c.mu.Lock()
	defer c.mu.Unlock()
	last := c.confirms[in.Address]
	switch {
	case last != nil && last.began.IsZero():
		return last
	case c.ended:
		return nil
	}
	next := &confirm{done: make(chan struct{}), listed: map[string]series{}}
	var former chan struct{}
	if last != nil {
		former, next.listed = last.done, last.listed
	}
	if len(c.confirms) >= maxNames {
		clear(c.confirms) // reads in progress continue for the requests that wait for them
	}
	c.confirms[in.Address] = next
	c.work.Go(func() {
		defer close(next.done)
		if former != nil {
			<-former
		}
		c.mu.Lock()
		next.began = time.Now()
		c.mu.Unlock()
		snap := c.o.Members()
		var e engine
		for _, role := range instance.Roles() {
			if one, ok := snap.Lookup(instance.Key{Role: role, Address: in.Address}); ok {
				e = append(e, one)
			}
		}
		if len(e) == 0 {
			e = engine{in} // it has just left
		}
		next.read = c.read(c.ctx, e)
		c.awaitPublished(c.ctx, []read{next.read})
	})
	return next
}

// verdict returns the verdict from a completed read.
func (c *Catalog) verdict(r *confirm, model string) Verdict {
	if r.read.err != nil {
		return Unclear
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	maps.DeleteFunc(r.listed, func(_ string, s series) bool { return r.began.Sub(s.last) > brokenAfter })
	if !slices.Contains(r.read.facts.Models, model) {
		delete(r.listed, model)
		c.nextRound()
		return Unloaded
	}
	s, before := r.listed[model]
	if !before {
		s.first = r.began
	}
	s.last = r.began
	r.listed[strings.Clone(model)] = s
	if s.last.Sub(s.first) < brokenAfter {
		return Unclear
	}
	return Broken
}
