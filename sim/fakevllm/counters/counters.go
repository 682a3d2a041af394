// Package counters counts the events of an engine across its incarnations, with remarks on some
// of them.
package counters

import (
	"fmt"
	"reflect"
	"slices"
	"sync"
	"sync/atomic"
)

// Counters outlast the incarnations of an engine: a restart does not reset them. The zero value
// is ready.
//
// A remark is stored before its counter is incremented, so that a reader of the counter finds the
// remark.
type Counters struct {
	Remarks
	Values[atomic.Int64]
}

// Abort counts a request that its client aborted.
func (c *Counters) Abort(id string) {
	c.Remarks.aborted.add(id)
	c.Values.Aborted.Add(1)
}

// Violate counts a request that no correct proxy sends.
func (c *Counters) Violate(format string, args ...any) {
	c.Remarks.violations.add(fmt.Sprintf(format, args...))
	c.Values.Violations.Add(1)
}

// BadParam counts kv_transfer_params that the connector cannot use.
func (c *Counters) BadParam(id, why string) {
	c.Remarks.badParams.add(id + ": " + why)
	c.Values.BadParams.Add(1)
}

// Refuse counts a failed KV transfer.
func (c *Counters) Refuse(id string, err error) {
	c.Remarks.refusals.add(id + ": " + err.Error())
	c.TransfersRefused.Add(1)
}

// Mislead counts a response that was computed from the blocks of another prompt.
func (c *Counters) Mislead(id, why string) {
	c.Remarks.refusals.add(id + ": " + why + ": the answer is wrong")
	c.WrongKV.Add(1)
}

// Reuse counts a transfer_id that was received twice.
func (c *Counters) Reuse(format string, args ...any) {
	c.Violate(format, args...)
	c.ReusedTransfers.Add(1)
}

// Read returns the present values.
func (c *Counters) Read() (r Reading) {
	from, into := reflect.ValueOf(&c.Values).Elem(), reflect.ValueOf(&r).Elem()
	for i := range from.NumField() {
		n, _ := reflect.TypeAssert[*atomic.Int64](from.Field(i).Addr())
		into.Field(i).SetInt(n.Load())
	}
	return r
}

// Reading has the values of the counters at one time.
type Reading = Values[int64]

// Values are one value for each counter.
type Values[N any] struct {
	Requests         N `json:"requests"`          // completions and chat completions that arrived
	Completed        N `json:"completed"`         // answered to the end
	Failed           N `json:"failed"`            // 500s and error events
	Aborted          N `json:"aborted"`           // given up by the client
	Running          N `json:"running"`           // generating now
	Waiting          N `json:"waiting"`           // queued now
	PromptTokens     N `json:"prompt_tokens"`     // of requests that began to run
	GenerationTokens N `json:"generation_tokens"` //
	CacheQueries     N `json:"cache_queries"`     // prompt tokens looked for in the prefix cache
	CacheHits        N `json:"cache_hits"`        // of these, tokens found
	ComputedTokens   N `json:"computed_tokens"`   // prompt tokens computed by an engine with a queue
	LocalPrefills    N `json:"local_prefills"`    // prompts a decode engine had to compute itself
	Recomputed       N `json:"recomputed"`        // of these, after a KV transfer that failed

	TransfersMade    N `json:"transfers_made"`    // prefills that gave out kv_transfer_params
	TransfersLoaded  N `json:"transfers_loaded"`  // fetched by this engine as decode
	TransfersRefused N `json:"transfers_refused"` // not given to this engine as decode
	TransfersWaiting N `json:"transfers_waiting"` // made by this engine, not fetched yet
	TransfersExpired N `json:"transfers_expired"` // of this life, never fetched
	BadParams        N `json:"bad_params"`        // kv_transfer_params of a wrong shape
	KVParams         N `json:"kv_params"`         // requests that carried kv_transfer_params at all
	Crashes          N `json:"crashes"`           // requests that would have crashed the engine
	WaitingForKV     N `json:"waiting_for_kv"`    // Mooncake decodes that wait for their prefill now
	Pulls            N `json:"pulls"`             // decodes that came to this life of a Mooncake or MoRI-IO prefill for blocks
	WrongKV          N `json:"wrong_kv"`          // answers made from the blocks of another prompt, wrong in their text
	ReusedTransfers  N `json:"reused_transfers"`  // transfer_ids that came a second time
	BootstrapQueries N `json:"bootstrap_queries"` // GET /query, from decodes and proxies
	Faults           N `json:"faults"`            // scripted faults that happened
	Violations       N `json:"violations"`
}

// Remarks describe the events of some counters, at most 10000 of each.
type Remarks struct {
	aborted, violations, badParams, refusals notes
}

// Aborted lists the ids ("chatcmpl-<X-Request-Id>") of requests whose client
// disconnected before the response was complete.
func (r *Remarks) Aborted() []string { return r.aborted.all() }

// Violations lists requests that vLLM accepts but a correct proxy does not send
// to an engine of this role. Without Options.StrictPrefill it only has requests
// that crash a Mooncake engine or make it wait until a timeout.
func (r *Remarks) Violations() []string { return r.violations.all() }

// BadParams lists the errors of kv_transfer_params without the form that the
// connector expects. vLLM logs a warning and computes the prompt itself.
func (r *Remarks) BadParams() []string { return r.badParams.all() }

// Refusals lists the reasons why this engine could not load KV caches.
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
