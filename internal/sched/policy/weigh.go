package policy

// How the load of an instance becomes one number: legs. A leg is one request in flight.

const (
	// heldLeg is how many tokens of prompts weigh as much as one more leg: decoding beside long
	// prompts takes longer, and room. It is chosen, not measured.
	heldLeg = 8192
	// roomy is up to which part of its KV cache in use an engine is as good as idle.
	roomy = 0.5
)

// Legs is what an instance has to do, in legs: those of this proxy as they are now, and
// what is known from elsewhere. It reads one line of the processor's caches.
func (l *Load) Legs() float64 {
	return float64(l.InFlight.Load()) + float64(l.Held.Load())*(1.0/heldLeg) + l.Beyond.Load()
}

// Weigh makes Beyond of what the other proxies and the engine say: the others' legs and
// the tokens that they hold, weighed as this proxy's own; one leg for each request that
// waits in the engine, since those behind it wait for it as well; and when more than half of
// the KV cache is in use, up to as much again as all legs, and one more.
func (l *Load) Weigh() {
	beyond := l.Others.InFlight.Load() + l.Others.Held.Load()/heldLeg
	if e := l.Engine.Load(); e != nil {
		legs := float64(l.InFlight.Load()) + float64(l.Held.Load())/heldLeg + beyond
		beyond += e.All.Waiting + max(0, e.All.Usage-roomy)/(1-roomy)*(legs+1)
	}
	l.Beyond.Store(beyond)
}
