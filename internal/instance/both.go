package instance

import "fmt"

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

// Other is the role that a pair needs beside this one.
func (r Role) Other() Role {
	if r == Prefill {
		return Decode
	}
	return Prefill
}

// Each returns the memberships that a key means: two for Both, in display order, else
// itself.
func (k Key) Each() []Key {
	if k.Role != Both {
		return []Key{k}
	}
	return []Key{{Prefill, k.Address}, {Decode, k.Address}}
}
