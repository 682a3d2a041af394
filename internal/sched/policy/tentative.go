package policy

import "math/rand/v2"

// Tentative is a choice that may come to nothing: a request that is better served another
// way, or somebody who only asks. Until Confirm the policy takes no turn and notes
// nothing. Its zero value is ready for one choice.
type Tentative struct{ note func() }

// Confirm reports whether the leg goes to whom the policy has chosen. Only the first call
// counts.
func (t *Tentative) Confirm() {
	if t.note != nil {
		t.note()
		t.note = nil
	}
}

// noting has the policy note its choice: now, or when it is confirmed.
func (r *Request) noting(note func()) {
	if r.Tentative != nil {
		r.Tentative.note = note
		return
	}
	note()
}

// chance is a number from 0 up to 1 out of a policy's own. A tentative choice takes none
// of them: those that follow draw as if it had not been.
func (r *Request) chance(own func() float64) float64 {
	if r.Tentative != nil {
		return rand.Float64()
	}
	return own()
}

// Explanation is what a policy says about a choice, for people. A policy that is asked
// for it names what it has weighed.
type Explanation struct{ scores map[int][]Score }

// Score is one number that a choice went by.
type Score struct {
	Name  string  `json:"name"`
	Value float64 `json:"value"`
}

// Score notes a number of the i-th candidate.
// Nobody has to ask whether there is somebody to explain to.
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

// Of returns the scores of the candidate at a place of the list.
func (e *Explanation) Of(at int) []Score { return e.scores[at] }
