package policy

import "math/rand/v2"

// Tentative is a choice that may not be used: the request may be served in another way, or the choice is only
// explained. Until Confirm, the policy takes no turn and records nothing. The zero value is ready for one
// choice.
type Tentative struct{ note func() }

// Confirm makes the choice effective: the leg is sent to the chosen candidate. Only the first call
// counts.
func (t *Tentative) Confirm() {
	if t.note != nil {
		t.note()
		t.note = nil
	}
}

// noting calls note now; for a tentative choice, it is called on Confirm.
func (r *Request) noting(note func()) {
	if r.Tentative != nil {
		r.Tentative.note = note
		return
	}
	note()
}

// chance returns a random number in [0, 1). A tentative choice does not use the policy's own sequence, so
// that it does not affect later choices.
func (r *Request) chance(own func() float64) float64 {
	if r.Tentative != nil {
		return rand.Float64()
	}
	return own()
}

// Explanation has the scores by which a policy made a choice, for display.
type Explanation struct{ scores map[int][]Score }

// Score is one number that was used in a choice.
type Score struct {
	Name  string  `json:"name"`
	Value float64 `json:"value"`
}

// Score adds a number that was used for candidate i. On nil it does nothing.
func (e *Explanation) Score(c *Candidates, i int, name string, value float64) {
	if e == nil {
		return
	}
	if e.scores == nil {
		e.scores = map[int][]Score{}
	}
	at := c.Index(i)
	e.scores[at] = append(e.scores[at], Score{name, value})
}

// Each adds the named score of every candidate. It does nothing if e is nil.
func (e *Explanation) Each(c *Candidates, name string, value func(i int) float64) {
	for i := 0; e != nil && i < c.Len(); i++ {
		e.Score(c, i, name, value(i))
	}
}

// Of returns the scores of the candidate at an index of the whole list.
func (e *Explanation) Of(at int) []Score { return e.scores[at] }
