package policy

import (
	"errors"
	"fmt"
	"strings"
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

// Kind is a policy that can be asked for by name.
type Kind struct {
	Name string
	New  func(Options) Policy
}

// kinds lists the policies that there are.
func kinds() []Kind {
	return []Kind{
		{Default, newRoundRobin},
		{"random", newRandom},
		{"least_loaded", newLeastLoaded},
		{"power_of_two", newPowerOfTwo},
		{Session, newSession},
		{DefaultPrefill, newPrefix},
		{KVAware, newKVAware},
	}
}

// Chain gives the policies that choose for a role, in the order in which they are
// asked: with bind that of sessions, then its own, then the default.
func Chain(own Kind, bind bool) []Kind {
	var chain []Kind
	if bind && own.Name != Session {
		chain = append(chain, Kind{Session, newSession})
	}
	if own.New != nil {
		chain = append(chain, own)
	}
	if own.Name != Default {
		chain = append(chain, Kind{Default, newRoundRobin})
	}
	return chain
}

// ErrUnknown is wrapped by the error of Find.
var ErrUnknown = errors.New("no such policy")

// Find gives the policy of a name.
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
