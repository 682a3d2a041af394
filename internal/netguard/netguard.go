// Package netguard decides which addresses the proxy may connect to on the
// word of etcd: whoever can write an instance would otherwise receive prompts
// or reach services beside the fleet. It is asked at dial, after the name has
// been resolved, so that a name cannot point somewhere else later.
package netguard

import (
	"errors"
	"fmt"
	"net/netip"
	"syscall"
)

// ErrForbidden is wrapped by every refusal.
var ErrForbidden = errors.New("address not allowed")

// Policy is a set of networks. It is immutable and safe for concurrent use.
type Policy struct {
	allow []netip.Prefix
}

// New allows exactly these networks; none at all means every address but the
// always refused ones.
func New(allow []netip.Prefix) Policy { return Policy{allow: allow} }

// Check judges an address that is about to be connected to. Link-local
// addresses (cloud metadata services live there), wildcards and multicast are
// refused whatever is allowed.
func (p Policy) Check(ip netip.Addr) error {
	ip = ip.Unmap()
	if ip.IsLinkLocalUnicast() || ip.IsUnspecified() || ip.IsMulticast() {
		return fmt.Errorf("%w: %s is link-local, a wildcard or multicast", ErrForbidden, ip)
	}
	if len(p.allow) == 0 {
		return nil
	}
	for _, n := range p.allow {
		if n.Contains(ip) {
			return nil
		}
	}
	return fmt.Errorf("%w: %s is outside --instance-allow", ErrForbidden, ip)
}

// Control has the shape of net.Dialer.Control.
func (p Policy) Control(_, address string, _ syscall.RawConn) error {
	ap, err := netip.ParseAddrPort(address)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrForbidden, err)
	}
	return p.Check(ap.Addr())
}
