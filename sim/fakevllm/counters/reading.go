package counters

// Reading is what was counted at one time.
type Reading struct {
	Requests         int64 `json:"requests"`          // completions and chat completions that arrived
	Completed        int64 `json:"completed"`         // answered to the end
	Rejected         int64 `json:"rejected"`          // answered 4xx by validation
	Failed           int64 `json:"failed"`            // 500s and error events
	Aborted          int64 `json:"aborted"`           // given up by the client
	Running          int64 `json:"running"`           // generating now
	Waiting          int64 `json:"waiting"`           // queued now
	PromptTokens     int64 `json:"prompt_tokens"`     // of requests that began to run
	GenerationTokens int64 `json:"generation_tokens"` //
	CacheQueries     int64 `json:"cache_queries"`     // prompt tokens looked for in the prefix cache
	CacheHits        int64 `json:"cache_hits"`        // of these, tokens found
	ComputedTokens   int64 `json:"computed_tokens"`   // prompt tokens computed by an engine with a queue
	LocalPrefills    int64 `json:"local_prefills"`    // prompts a decode engine had to compute itself
	Recomputed       int64 `json:"recomputed"`        // of these, after a hand-over that could not be used

	HandoversMade    int64 `json:"handovers_made"`    // prefills that gave out kv_transfer_params
	HandoversLoaded  int64 `json:"handovers_loaded"`  // fetched by this engine as decode
	HandoversRefused int64 `json:"handovers_refused"` // not given to this engine as decode
	HandoversWaiting int64 `json:"handovers_waiting"` // made by this engine, not fetched yet
	HandoversExpired int64 `json:"handovers_expired"` // of this life, never fetched
	BadHandovers     int64 `json:"bad_handovers"`     // kv_transfer_params of a wrong shape
	KVParams         int64 `json:"kv_params"`         // requests that carried kv_transfer_params at all
	Crashes          int64 `json:"crashes"`           // requests that would have crashed the engine
	WaitingForKV     int64 `json:"waiting_for_kv"`    // Mooncake decodes that wait for their prefill now
	Pulls            int64 `json:"pulls"`             // decodes that came to this life of a Mooncake or MoRI-IO prefill for blocks
	WrongKV          int64 `json:"wrong_kv"`          // answers made from the blocks of another prompt, wrong in their text
	ReusedTransfers  int64 `json:"reused_transfers"`  // transfer_ids that came a second time
	BootstrapQueries int64 `json:"bootstrap_queries"` // GET /query, from decodes and proxies
	Faults           int64 `json:"faults"`            // scripted faults that happened
	Violations       int64 `json:"violations"`
}
