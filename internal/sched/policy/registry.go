package policy

import (
	"errors"
	"fmt"
	"strings"

	"github.com/pdmesh/pdmesh/internal/instance"
)

// Default is the policy of decode instances for which none is named, and the one that
// chooses where another cannot tell.
const Default = "round_robin"

// DefaultPrefill is the policy of prefill instances for which none is named.
const DefaultPrefill = "prefix"

// KVAware is the policy that goes by the events of engines' KV caches.
const KVAware = "kv_aware"

// Session is the policy that binds requests to the instance of their session.
const Session = "session"

// TokenWeighted is the policy that goes by the scores of vllm-ascend's proxy.
const TokenWeighted = "token_weighted"

// Kind is a policy that can be asked for by name.
type Kind struct {
	Name string
	New  func(Options) Policy
	// Score is what a leg with a body of so many bytes adds to Load.Scores of its role
	// while it is in flight; nil where nobody looks at these.
	Score func(role instance.Role, length int) int64
	// Draws reports whether it goes by chance: asked twice about a request, it may answer
	// differently.
	Draws bool
}

// kinds lists the policies that there are.
func kinds() []Kind {
	return []Kind{
		{Name: Default, New: newRoundRobin},
		{Name: "random", New: newRandom, Draws: true},
		{Name: "least_loaded", New: newLeastLoaded, Draws: true},
		{Name: "power_of_two", New: newPowerOfTwo, Draws: true},
		{Name: TokenWeighted, New: newTokenWeighted, Score: scoreOf, Draws: true},
		{Name: Session, New: newSession},
		{Name: DefaultPrefill, New: newPrefix},
		{Name: KVAware, New: newKVAware},
	}
}

// Chain returns the policies that choose for a role, in the order in which they are
// asked: with bind that of sessions, then its own, then the default.
func Chain(own Kind, bind bool) []Kind {
	var chain []Kind
	if bind && own.Name != Session {
		chain = append(chain, Kind{Name: Session, New: newSession})
	}
	if own.New != nil {
		chain = append(chain, own)
	}
	if own.Name != Default {
		chain = append(chain, Kind{Name: Default, New: newRoundRobin})
	}
	return chain
}

// ErrUnknown is wrapped by the error of Find.
var ErrUnknown = errors.New("no such policy")

// Find returns the policy of a name.
func Find(name string) (Kind, error) {
	for _, k := range kinds() {
		if k.Name == name {
			return k, nil
		}
	}
	return Kind{}, fmt.Errorf("%w; use %s", ErrUnknown, strings.Join(Names(), ", "))
}

// Names lists the names of all policies, the default first.
func Names() []string {
	var names []string
	for _, k := range kinds() {
		names = append(names, k.Name)
	}
	return names
}
