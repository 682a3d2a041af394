package catalog

import (
	"context"
	"maps"
	"strings"
	"time"

	"github.com/pdmesh/pdmesh/internal/cli/sleep"
)

// Find reads the engines again, because no instance lists a model that a request names, and reports whether
// one can serve it now. It waits for the answers until ctx ends. Requests for the same model share a round of
// reads, whose result is valid for negativeTTL. Requests for different models share rounds as well. Rounds
// are at least minPause apart.
func (c *Catalog) Find(ctx context.Context, model string) bool {
	if c == nil {
		return false
	}
	if c.o.Serves(model) {
		return true // the membership has changed meanwhile
	}
	if len(model) > maxNameBytes {
		return false
	}
	r := c.join(strings.Clone(model)) // a request's bytes are reused
	if r == nil {
		return false
	}
	var changed <-chan struct{} // changes of the members, from late on
	for late := r.late; ; late = nil {
		select {
		case <-ctx.Done():
			return false
		case <-r.done:
			return c.o.Serves(model)
		case <-late:
		case <-changed:
		}
		changed = c.o.Members().Changed()
		if c.o.Serves(model) {
			return true
		}
	}
}

// Trigger starts a round of reads, because an engine does not list the models of its record.
func (c *Catalog) Trigger() {
	if c == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.nextRound()
}

// join returns the round that looks for a model; nil if the result is known, or if too many models are being
// looked for.
func (c *Catalog) join(model string) *round {
	c.mu.Lock()
	defer c.mu.Unlock()
	if r := c.names[model]; r != nil {
		switch {
		case r.ended.IsZero():
			return r
		case time.Since(r.ended) < negativeTTL && !r.names[model]:
			return nil
		}
	}
	if len(c.names) >= maxNames {
		maps.DeleteFunc(c.names, func(_ string, r *round) bool { return !r.ended.IsZero() && time.Since(r.ended) >= negativeTTL })
		if len(c.names) >= maxNames {
			return nil
		}
	}
	r := c.nextRound()
	if r != nil {
		r.names[model], c.names[model] = false, r
	}
	return r
}

// nextRound returns the round that has not begun yet; nil after the end of Run. The lock is held.
func (c *Catalog) nextRound() *round {
	if c.waiting == nil && !c.ended {
		r := &round{late: make(chan struct{}), done: make(chan struct{}), names: map[string]bool{}}
		c.waiting = r
		c.work.Go(func() { c.runRound(r) })
	}
	return c.waiting
}

// runRound waits for the time of the round and reads all engines.
func (c *Catalog) runRound(r *round) {
	defer close(r.done)
	c.rounds <- struct{}{}
	defer func() { <-c.rounds }()
	if !sleep.Until(c.ctx, c.next) {
		return
	}
	c.mu.Lock()
	c.waiting = nil // later requests wait for the next one
	c.mu.Unlock()
	began, list := time.Now(), c.usable()
	late := time.AfterFunc(earlyAfter, func() { close(r.late) })
	defer late.Stop()
	reads := c.readAll(c.ctx, list)
	var spent time.Duration
	snap := c.o.Members()
	for i := range reads {
		spent += cost(len(reads[i].facts.Models))
		if published(snap, &reads[i]) {
			continue
		}
		for _, m := range reads[i].facts.Models {
			if _, ok := r.names[m]; ok {
				r.names[m] = true
			}
		}
	}
	c.mu.Lock()
	r.ended = time.Now()
	c.mu.Unlock()
	c.next = began.Add(max(minPause, share*spent))
}
