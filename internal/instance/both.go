package instance

import (
	"fmt"
	"slices"
)

// Both is the role in flags and admin routes for an engine in both roles. No membership
// has it: such an engine has two memberships with one address.
const Both Role = "both"

// ParseRoles parses "prefill", "decode" or "both".
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

// Other returns the other role of a pair.
func (r Role) Other() Role {
	if r == Prefill {
		return Decode
	}
	return Prefill
}

// Other returns the key of the engine's membership in the other role.
func (k Key) Other() Key { return Key{k.Role.Other(), k.Address} }

// Serving returns the usable instances of a key's role at other addresses that serve at least one of
// the models.
func (s *Snapshot) Serving(k Key, models []string) (out []*Instance) {
	for _, in := range s.Usable(k.Role) {
		if in.Address != k.Address && slices.ContainsFunc(models, in.ServesModel) {
			out = append(out, in)
		}
	}
	return out
}

// Each returns the memberships of a key: two for Both, in display order, otherwise the
// key itself.
func (k Key) Each() []Key {
	if k.Role != Both {
		return []Key{k}
	}
	return []Key{{Prefill, k.Address}, {Decode, k.Address}}
}

// Memberships returns the memberships of several keys; see Key.Each.
func Memberships(keys []Key) (out []Key) {
	for _, k := range keys {
		out = append(out, k.Each()...)
	}
	return out
}
