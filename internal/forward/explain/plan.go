// Package explain has the types of the answer of POST /route: where a request would go, and why.
package explain

// The values of Plan.Way.
const (
	Pair       = "pair"        // prefill on one instance, decode on another
	DecodeOnly = "decode_only" // one instance serves the request without a prefill
	None       = "none"        // the request would be refused
)

// Plan is the path that a request would take now, and why. Nothing is sent, counted or recorded.
type Plan struct {
	Endpoint string `json:"endpoint"`
	Model    string `json:"model"`
	Target   string `json:"target,omitempty"` // of the model route
	// Share is the target's weight divided by the sum of all weights of the route, 0 to 1.
	Share    float64 `json:"target_share,omitempty"`
	Revision int64   `json:"revision"`
	// Bytes is the length of the prompt that the model reads, Tokens the expected number of its tokens.
	Bytes  int `json:"prompt_bytes"`
	Tokens int `json:"prompt_tokens"`
	// Way is Pair, DecodeOnly or None. Reason is why it is not Pair: the reason in
	// X-PD-Decode-Only, or the error for the client.
	Way          string   `json:"way"`
	Reason       string   `json:"reason,omitempty"`
	Disaggregate *Weighed `json:"disaggregate,omitempty"`
	Prefill      *Leg     `json:"prefill,omitempty"`
	Decode       *Leg     `json:"decode,omitempty"`
}

// Weighed is the decision of --disaggregate auto or never on whether the request goes
// through prefill and decode.
type Weighed struct {
	Decision   string  `json:"decision"` // Pair or DecodeOnly
	Reason     string  `json:"reason"`
	Pair       float64 `json:"pair_seconds"` // estimates, including the wait of other requests
	DecodeOnly float64 `json:"decode_only_seconds"`
	Stall      float64 `json:"stall_seconds"` // part of decode_only_seconds for which other requests wait
}

// Leg is the plan of one leg.
type Leg struct {
	Chosen string `json:"chosen,omitempty"` // the address
	Policy string `json:"policy,omitempty"` // the policy that chose
	// Cached is the number of tokens that the policy expects in the cache of the chosen instance.
	Cached    int    `json:"cached_tokens"`
	Elsewhere string `json:"elsewhere,omitempty"` // why another instance would have been preferred
	Error     string `json:"error,omitempty"`     // why no instance can be chosen

	Candidates []Candidate `json:"candidates"`
}

// Candidate is an instance of the role, or one of its data-parallel ranks.
type Candidate struct {
	Address string `json:"address"`
	Chosen  bool   `json:"chosen,omitempty"`
	// Out is why the candidate cannot be chosen, "" if it can: sched.OutModel and so on, a
	// reason of package bypass, or its state, view or intent.
	Out      string  `json:"out,omitempty"`
	Weight   float64 `json:"weight"` // below the configured weight during the slow start
	InFlight int64   `json:"in_flight"`
	Waiting  int64   `json:"waiting_tokens"`
	Held     int64   `json:"held_tokens"`
	Others   float64 `json:"others_in_flight"` // legs of other proxies
	Scores   []Score `json:"scores,omitempty"` // of the policy
}

// Score is a number by which a policy chooses.
type Score struct {
	Name  string  `json:"name"`
	Value float64 `json:"value"`
}
