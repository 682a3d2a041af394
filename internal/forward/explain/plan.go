// Package explain has the types of the answer of POST /route: where a request would go, and why.
package explain

// The ways of a plan.
const (
	Pair       = "pair"        // prefill on one instance, decode on another
	DecodeOnly = "decode_only" // one instance serves it without a prefill
	None       = "none"        // it would be refused
)

// Plan is where a request would go now, and why. Nothing is sent, counted or noted.
type Plan struct {
	Endpoint string `json:"endpoint"`
	Model    string `json:"model"`
	Target   string `json:"target,omitempty"` // of the model route
	// Share is the target's weight divided by the sum of all weights of the route, 0 to 1.
	Share    float64 `json:"target_share,omitempty"`
	Revision int64   `json:"revision"`
	// Bytes of what the model reads, and the tokens that they should be.
	Bytes  int `json:"prompt_bytes"`
	Tokens int `json:"prompt_tokens"`
	// Way is Pair, DecodeOnly or None, and Reason why it is not pair: the reason in
	// X-PD-Decode-Only, or the error for the client.
	Way          string   `json:"way"`
	Reason       string   `json:"reason,omitempty"`
	Disaggregate *Weighed `json:"disaggregate,omitempty"`
	Prefill      *Leg     `json:"prefill,omitempty"`
	Decode       *Leg     `json:"decode,omitempty"`
}

// Weighed is whether the request should go through prefill and decode, by --disaggregate
// auto or never.
type Weighed struct {
	Decision   string  `json:"decision"` // Pair or DecodeOnly
	Reason     string  `json:"reason"`
	Pair       float64 `json:"pair_seconds"` // estimates, including the wait of other requests
	DecodeOnly float64 `json:"decode_only_seconds"`
	Stall      float64 `json:"stall_seconds"` // part of decode_only_seconds that other requests wait
}

// Leg is the plan of one leg.
type Leg struct {
	Chosen string `json:"chosen,omitempty"` // the address
	Policy string `json:"policy,omitempty"` // that chose
	// Cached are the tokens that the policy expects in its cache.
	Cached    int    `json:"cached_tokens"`
	Elsewhere string `json:"elsewhere,omitempty"` // why another one would have been preferred
	Error     string `json:"error,omitempty"`     // why no instance can be chosen

	Candidates []Candidate `json:"candidates"`
}

// Candidate is an instance of the role, or one of its data-parallel ranks.
type Candidate struct {
	Address string `json:"address"`
	Chosen  bool   `json:"chosen,omitempty"`
	// Out is why it cannot be chosen, "" if it can: sched.OutModel and so on, a reason of package bypass, or its
	// state, view or intent.
	Out      string  `json:"out,omitempty"`
	Weight   float64 `json:"weight"` // less than its own while it starts slowly
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
