package policy

// How the load of an instance becomes one number, so that a policy that looks at every
// candidate reads one number of each. It is a whole number: whatever is added is taken
// away again without a rest.

const (
	// leg is one request in flight, in the unit of the number: a token of a prompt that is held.
	// Decoding beside so many tokens takes about as much longer as beside one more request, whose
	// own part in a step is small. It is chosen by the figures of docs/scheduling.md, not measured.
	leg = 8192
	// roomy is up to which part of its KV cache in use an engine is as good as idle.
	roomy = 0.5
)

// Begin counts a leg with a prompt of so many tokens.
func (l *Load) Begin(tokens int) {
	l.InFlight.Add(1)
	l.Held.Add(int64(tokens))
	l.sum.Add(leg + int64(tokens))
}

// End counts it back.
func (l *Load) End(tokens int) {
	l.InFlight.Add(-1)
	l.Held.Add(-int64(tokens))
	l.sum.Add(-leg - int64(tokens))
}

// Legs is what an instance has to do, in legs: those of this proxy as they are now, the
// tokens that they hold, and what is known from elsewhere.
func (l *Load) Legs() float64 { return float64(l.sum.Load()) * (1.0 / leg) }

// Weigh takes in anew what the other proxies and the engine say: the others' legs and
// the tokens that they hold, weighed as this proxy's own; one leg for each request that
// waits in the engine for its turn, since those behind it wait for it as well, and one for
// each that waits for its KV cache to come; and when more than half of the KV cache
// is in use, up to as much again as all legs, and one more.
func (l *Load) Weigh() {
	beyond := l.Others.InFlight.Load()*leg + l.Others.Held.Load()
	if e := l.Engine.Load(); e != nil {
		waiting := max(0, e.All.Waiting-e.All.Deferred) + e.All.Fetching
		legs := float64(l.InFlight.Load()*leg+l.Held.Load()) + beyond
		beyond += waiting*leg + max(0, e.All.Usage-roomy)/(1-roomy)*(legs+leg)
	}
	is := int64(min(beyond, 1<<52)) // whatever others say
	l.sum.Add(is - l.beyond.Swap(is))
}
