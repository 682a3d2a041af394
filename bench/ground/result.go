package ground

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"time"
)

// Result has the figures of one run of a target.
type Result struct {
	Target   string `json:"target"`
	Requests int    `json:"requests"`
	Failures int    `json:"failures"`
	// Void is the reason if the figures are not valid.
	Void string `json:"void,omitempty"`

	TTFT50 float64 `json:"ttft_p50_s"` // in time of the trace
	TTFT90 float64 `json:"ttft_p90_s"`
	// ITL90 is a quantile of the mean time between the tokens of each response.
	ITL90 float64 `json:"itl_p90_s"`
	// Hits is the hit ratio of the caches of prefill engines, in tokens.
	Hits float64 `json:"hit_ratio"`
	// OfShared is Hits divided by the hit ratio of one cache of the size of all.
	OfShared float64 `json:"hits_of_shared_cache"`
	// Spread is the number of tokens that the busiest prefill engine computed, divided by the mean.
	Spread float64 `json:"load_max_to_mean"`
	// Good is the part of the requests within Limits.
	Good float64 `json:"goodput"`
	// Local is the part of the prompts that decode engines computed.
	Local float64 `json:"computed_by_decode"`
	// RouterCPU is the router's CPU time per request in µs. Busy is the used part of the machine's
	// processor time during the replay. Both are 0 for the model.
	RouterCPU float64 `json:"router_cpu_us"`
	Busy      float64 `json:"machine_busy"`
	// Refused counts the requests that were answered with 429 or 503; they are no failures, and
	// TTFT50 and TTFT90 leave them out. Refusal is the 99th percentile of the time until that answer.
	Refused int     `json:"refused,omitempty"`
	Refusal float64 `json:"refusal_p99_s,omitempty"`
	// GoodRate and GoodTokens are the requests within Limits, and their uncached prompt tokens and
	// output tokens, per second of the trace.
	GoodRate   float64 `json:"good_requests_per_s,omitempty"`
	GoodTokens float64 `json:"good_tokens_per_s,omitempty"`
	// Admitted is the part of the requests that were not refused, by quartile of the prompt's length.
	Admitted [4]float64 `json:"admitted_by_prompt_length"`
	Failure  string     `json:"failure,omitempty"` // the first one
}

// sample is one response, in time of the trace.
type sample struct {
	ttft, itl time.Duration
	ok        bool
	refused   bool          // after took
	took      time.Duration // of a refusal
	input     int           // tokens of the prompt
	work      int           // uncached tokens of the prompt, and those of the response
}

// fill computes the figures of the samples, of a workload of this length.
func (r *Result) fill(samples []sample, limits Limits, length time.Duration) {
	var ttft, itl []time.Duration
	good, tokens := 0, 0
	var refusals []time.Duration
	for _, s := range samples {
		if s.refused {
			r.Refused++
			refusals = append(refusals, s.took)
			continue
		}
		if !s.ok {
			r.Failures++
			continue
		}
		ttft = append(ttft, s.ttft)
		if s.itl > 0 {
			itl = append(itl, s.itl)
		}
		if s.ttft <= limits.TTFT && s.itl <= limits.ITL {
			good++
			tokens += s.work
		}
	}
	slices.Sort(refusals)
	r.Refusal = quantile(refusals, 0.99)
	r.GoodRate, r.GoodTokens = float64(good)/length.Seconds(), float64(tokens)/length.Seconds()
	byLength := slices.Clone(samples)
	slices.SortStableFunc(byLength, func(a, b sample) int { return cmp.Compare(a.input, b.input) })
	for i := range r.Admitted {
		part := byLength[i*len(samples)/4 : (i+1)*len(samples)/4]
		for _, s := range part {
			if !s.refused {
				r.Admitted[i] += 1 / float64(len(part))
			}
		}
	}
	slices.Sort(ttft)
	slices.Sort(itl)
	r.ITL90 = quantile(itl, 0.9)
	r.Requests = len(samples)
	r.Good = float64(good) / float64(max(len(samples), 1))
	r.TTFT50, r.TTFT90 = quantile(ttft, 0.5), quantile(ttft, 0.9)
}

// quantile returns a quantile of a sorted list in seconds; 0 without values.
func quantile(sorted []time.Duration, q float64) float64 {
	if len(sorted) == 0 {
		return 0
	}
	return sorted[int(q*float64(len(sorted)-1))].Seconds()
}

// setRatios computes Hits, OfShared and Spread.
func (r *Result) setRatios(queries, hits int64, computed []int64, shared float64) {
	if queries > 0 {
		r.Hits = float64(hits) / float64(queries)
	}
	if shared > 0 {
		r.OfShared = r.Hits / shared
	}
	sum := int64(0)
	for _, n := range computed {
		sum += n
	}
	if sum > 0 {
		r.Spread = float64(slices.Max(computed)) * float64(len(computed)) / float64(sum)
	}
}

// Line returns the figures of a run in one line.
func (r *Result) Line() string {
	s := fmt.Sprintf("TTFT p50 %.2f s p90 %.2f s, ITL p90 %.1f ms, hits %.1f %%, goodput %.1f %%, %.1f %% computed by decode, %d failures, machine %.0f %% busy",
		r.TTFT50, r.TTFT90, 1000*r.ITL90, 100*r.Hits, 100*r.Good, 100*r.Local, r.Failures, 100*r.Busy)
	if r.Refused > 0 {
		s += fmt.Sprintf(", %d refused in %.2f s", r.Refused, r.Refusal)
	}
	if r.Void != "" {
		s += ", VOID: " + r.Void
	}
	if r.Failure != "" {
		s += ", first failure: " + r.Failure
	}
	return s
}

// Valid returns the runs that are not void.
func Valid(runs []Result) []Result {
	return slices.DeleteFunc(slices.Clone(runs), func(r Result) bool { return r.Void != "" })
}

// Median returns the medians of all figures. Void runs count only if there are no valid ones.
func Median(runs []Result) Result {
	valid := Valid(runs)
	if len(valid) == 0 {
		valid = runs
	}
	m := valid[0]
	for _, f := range []func(*Result) *float64{
		func(r *Result) *float64 { return &r.TTFT50 }, func(r *Result) *float64 { return &r.TTFT90 },
		func(r *Result) *float64 { return &r.ITL90 },
		func(r *Result) *float64 { return &r.Hits }, func(r *Result) *float64 { return &r.OfShared },
		func(r *Result) *float64 { return &r.Spread }, func(r *Result) *float64 { return &r.Good },
		func(r *Result) *float64 { return &r.Local }, func(r *Result) *float64 { return &r.RouterCPU }, func(r *Result) *float64 { return &r.Busy },
		func(r *Result) *float64 { return &r.Refusal }, func(r *Result) *float64 { return &r.GoodRate }, func(r *Result) *float64 { return &r.GoodTokens },
		func(r *Result) *float64 { return &r.Admitted[0] }, func(r *Result) *float64 { return &r.Admitted[1] },
		func(r *Result) *float64 { return &r.Admitted[2] }, func(r *Result) *float64 { return &r.Admitted[3] },
	} {
		all := make([]float64, len(valid))
		for i := range valid {
			all[i] = *f(&valid[i])
		}
		slices.Sort(all)
		*f(&m) = all[len(all)/2]
	}
	m.Refused = int(math.Round(float64(m.Requests) * (1 - (m.Admitted[0]+m.Admitted[1]+m.Admitted[2]+m.Admitted[3])/4)))
	for i := range valid {
		if valid[i].Failures > m.Failures {
			m.Failures, m.Failure = valid[i].Failures, valid[i].Failure
		}
	}
	return m
}
