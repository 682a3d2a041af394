package policy

import (
	"errors"
	"fmt"
	"strings"

	"github.com/pdmesh/pdmesh/internal/instance"
)

// Default is the default policy of decode instances, and the fallback of policies that do not
// apply to a request.
const Default = "round_robin"

// DefaultPrefill is the default policy of prefill instances.
const DefaultPrefill = "prefix"

// KVAware is the policy that uses the engines' KV events.
const KVAware = "kv_aware"

// Session is the policy that binds requests to the instance of their session.
const Session = "session"

// TokenWeighted is the policy that uses the scores of vllm-ascend's proxy.
const TokenWeighted = "token_weighted"

// Kind is a policy that can be selected by name.
type Kind struct {
	Name string
	New  func(Options) Policy
	// Score returns the number that a leg with a body of the given bytes adds to Load.Scores of its role
	// while it is in flight; nil if the policy does not use scores.
	Score func(role instance.Role, length int) int64
	// Draws reports whether the policy is random: two choices for one request may differ.
	Draws bool
}

// kinds returns all policies.
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

// Chain returns the policies of a role in the order in which they are tried: Session if bind is set, then the
// policy own of the role, then Default.
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

// UsesSession reports whether the policy with the given name uses Request.Session.
func UsesSession(name string) bool {
	return name == Session || name == DefaultPrefill || name == KVAware
}

// KnowsCaches reports whether the policy with the given name estimates the contents of the instances' caches.
func KnowsCaches(name string) bool { return name == DefaultPrefill || name == KVAware }

// ErrUnknown is wrapped by the error of Find.
var ErrUnknown = errors.New("no such policy")

// Find returns the policy with the given name, or an error that wraps ErrUnknown.
func Find(name string) (Kind, error) {
	for _, k := range kinds() {
		if k.Name == name {
			return k, nil
		}
	}
	return Kind{}, fmt.Errorf("%w; use %s", ErrUnknown, strings.Join(Names(), ", "))
}

// Names returns the names of all policies, the default first.
func Names() []string {
	var names []string
	for _, k := range kinds() {
		names = append(names, k.Name)
	}
	return names
}
