package instance

import (
	"fmt"
	"slices"
)

// Both is how flags and admin routes name an engine that is in either role. No
// membership has it: there are two, with one address.
const Both Role = "both"

// ParseRoles accepts what ParseRole does, and "both".
func ParseRoles(s string) (Role, error) {
	if Role(s) == Both {
		return Both, nil
	}
	if _, err := ParseRole(s); err != nil {
		return "", fmt.Errorf("%w %q: use \"prefill\", \"decode\" or \"both\"", ErrRole, s)
	}
	return Role(s), nil
}

// Index returns the index of prefill or decode in an array of two.
func (r Role) Index() int {
	if r == Prefill {
		return 0
	}
	return 1
}

// Other is the role that a pair needs beside this one.
func (r Role) Other() Role {
	if r == Prefill {
		return Decode
	}
	return Prefill
}

// Other is the key of the engine's membership in the other role.
func (k Key) Other() Key { return Key{k.Role.Other(), k.Address} }

// Serving lists the usable instances of a key's role, other than the key's own, that serve at least
// one of the models.
func (s *Snapshot) Serving(k Key, models []string) (out []*Instance) {
	for _, in := range s.Usable(k.Role) {
		if in.Address != k.Address && slices.ContainsFunc(models, in.ServesModel) {
			out = append(out, in)
		}
	}
	return out
}

// Each returns the memberships that a key means: two for Both, in display order, else
// itself.
func (k Key) Each() []Key {
	if k.Role != Both {
		return []Key{k}
	}
	return []Key{{Prefill, k.Address}, {Decode, k.Address}}
}

// Memberships returns the memberships that several keys mean.
func Memberships(keys []Key) (out []Key) {
	for _, k := range keys {
		out = append(out, k.Each()...)
	}
	return out
}
