// Package counters is what an engine did in all its lives: numbers, and remarks on some of them.
package counters

import (
	"fmt"
	"sync/atomic"
)

// Counters stand beside the lives: a restart does not reset them. The zero value is ready.
//
// What is counted with a remark is written down before, so that whatever sees the number
// finds what it counts.
type Counters struct {
	Remarks

	Requests, Completed, Rejected, Failed    atomic.Int64
	PromptTokens, GenerationTokens           atomic.Int64
	CacheQueries, CacheHits, ComputedTokens  atomic.Int64
	LocalPrefills, Recomputed                atomic.Int64
	HandoversMade, HandoversLoaded, KVParams atomic.Int64
	Crashes, WaitingForKV, BootstrapQueries  atomic.Int64

	aborted, violations, badHandovers, refused, wrongKV, reused atomic.Int64
}

// Abort notes a request that its client gave up.
func (c *Counters) Abort(id string) {
	c.Remarks.aborted.add(id)
	c.aborted.Add(1)
}

// Violate notes what no good proxy sends.
func (c *Counters) Violate(format string, args ...any) {
	c.Remarks.violations.add(fmt.Sprintf(format, args...))
	c.violations.Add(1)
}

// BadHandover notes kv_transfer_params that their connector cannot use.
func (c *Counters) BadHandover(id, why string) {
	c.Remarks.badHandovers.add(id + ": " + why)
	c.badHandovers.Add(1)
}

// Refuse notes a hand-over that did not come.
func (c *Counters) Refuse(id string, err error) {
	c.Remarks.refusals.add(id + ": " + err.Error())
	c.refused.Add(1)
}

// Mislead notes an answer that is made from the blocks of another prompt.
func (c *Counters) Mislead(id, why string) {
	c.Remarks.refusals.add(id + ": " + why + ": the answer is wrong")
	c.wrongKV.Add(1)
}

// Reuse notes a transfer_id that came a second time.
func (c *Counters) Reuse(format string, args ...any) {
	c.Violate(format, args...)
	c.reused.Add(1)
}

// Read reads what is counted in them; the rest of a Reading is known to others.
func (c *Counters) Read() Reading {
	return Reading{
		Requests: c.Requests.Load(), Completed: c.Completed.Load(), Rejected: c.Rejected.Load(),
		Failed: c.Failed.Load(), Aborted: c.aborted.Load(),
		PromptTokens: c.PromptTokens.Load(), GenerationTokens: c.GenerationTokens.Load(),
		CacheQueries: c.CacheQueries.Load(), CacheHits: c.CacheHits.Load(), ComputedTokens: c.ComputedTokens.Load(),
		LocalPrefills: c.LocalPrefills.Load(), Recomputed: c.Recomputed.Load(),
		HandoversMade: c.HandoversMade.Load(), HandoversLoaded: c.HandoversLoaded.Load(), HandoversRefused: c.refused.Load(),
		BadHandovers: c.badHandovers.Load(), KVParams: c.KVParams.Load(), Crashes: c.Crashes.Load(),
		WaitingForKV: c.WaitingForKV.Load(), WrongKV: c.wrongKV.Load(), ReusedTransfers: c.reused.Load(), BootstrapQueries: c.BootstrapQueries.Load(),
		Violations: c.violations.Load(),
	}
}
