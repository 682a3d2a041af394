package counters

import (
	"slices"
	"sync"
)

// Remarks say what some of the numbers count, at most 10000 of each.
type Remarks struct {
	aborted, violations, badHandovers, refusals notes
}

// Aborted lists the ids ("chatcmpl-<X-Request-Id>") of requests whose client
// went away before the answer was complete.
func (r *Remarks) Aborted() []string { return r.aborted.all() }

// Violations lists what arrived although vLLM takes it that a good proxy does
// not send to an engine of this role; only with Options.StrictPrefill, but for
// what kills a Mooncake engine or makes it wait in vain.
func (r *Remarks) Violations() []string { return r.violations.all() }

// BadHandovers says what was wrong with each kv_transfer_params that had not
// the shape its connector wants. vLLM warns and computes the prompt itself.
func (r *Remarks) BadHandovers() []string { return r.badHandovers.all() }

// Refusals says why hand-overs could not be loaded by this engine.
func (r *Remarks) Refusals() []string { return r.refusals.all() }

// notes is a bounded list of remarks; the first ones are kept.
type notes struct {
	mu   sync.Mutex // guards list
	list []string
}

func (n *notes) add(s string) {
	const limit = 10000
	n.mu.Lock()
	defer n.mu.Unlock()
	if len(n.list) < limit {
		n.list = append(n.list, s)
	}
}

func (n *notes) all() []string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.Clone(n.list)
}
